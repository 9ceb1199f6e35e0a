"""Work pools: where Prefect's workers run the flows, and what a run needs to know there.

A process runs where the worker does, with the worker's own variables. A container, of Docker or of Kubernetes, starts with
nothing: its pool's base job template (deploy/pools/) gets the addresses as they are, and the secrets as references to
blocks, which Prefect's server keeps encrypted and the worker resolves when it starts a run. No template holds a value of
theirs. Docker and Kubernetes themselves show a container's variables to whoever may inspect it there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flows.deployment.workspace import limit
from steps.core.errors import UserError
from steps.core.progress import say
from steps.project.dvc import dvc_output

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

TYPES = ("process", "docker", "kubernetes")
TEMPLATES = Path("deploy/pools")
HOME = "/srv/flywheel"  # the project's folder in an image of deploy/Containerfile
OWN = {  # a worker passes its own settings on, and in them its folders, which an image has not
    "FLYWHEEL_ROOT": HOME,
    "PREFECT_HOME": f"{HOME}/.flywheel/prefect",
    "PREFECT_LOCAL_STORAGE_PATH": f"{HOME}/.flywheel/prefect/storage",
    "PREFECT_MEMO_STORE_PATH": f"{HOME}/.flywheel/prefect/memo_store.toml",
}
ADDRESSES = "MLFLOW_TRACKING_URI MLFLOW_TRACKING_USERNAME AWS_ENDPOINT_URL AWS_DEFAULT_REGION HF_ENDPOINT".split()
SECRETS = (
    "FLYWHEEL_LEDGER_URL FLYWHEEL_GIT_URL MLFLOW_TRACKING_PASSWORD AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY".split()
)
SECRETS += "OPENAI_API_KEY HF_TOKEN WANDB_API_KEY".split()
NEEDED = {  # without which a container's run could not begin, or would leave nothing
    "MLFLOW_TRACKING_URI": "the address of MLflow's server",
    "FLYWHEEL_LEDGER_URL": "the ledger's PostgreSQL",
    "FLYWHEEL_GIT_URL": "the repository from which a container gets the code, and to which it pushes its run's name",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def set_up(client: SyncPrefectClient, root: Path, pool: str, kind: str, image: str | None, runs: int) -> None:
    """Make the work pool, or bring it up to date: its template, the blocks of the secrets that are set here, and the limit
    of how many runs it has at a time. UserError where it exists with another type, or a container would lack something."""
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectNotFound

    variables = {"FLYWHEEL_POOL": pool} | (given(client, kind, os.environ) if kind != "process" else {})
    made = template(root, kind, image, variables)
    try:
        existing = client.read_work_pool(pool)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(name=pool, type=kind, base_job_template=made))
    else:
        if existing.type != kind:
            raise UserError(
                f"the work pool {pool} is of the type {existing.type}: give --type {existing.type}, or another --pool"
            )
        client.update_work_pool(pool, WorkPoolUpdate(base_job_template=made))
    client.upsert_global_concurrency_limit_by_name(limit(pool), runs)
    if kind != "process" and not dvc_output(root, "config", "core.remote").strip():
        say(
            "there is no default DVC remote: the data of runs stay in the pool's volume (`.venv/bin/dvc remote add "
            "--default`)"
        )


def template(root: Path, kind: str, image: str | None, variables: Mapping[str, str]) -> dict[str, Any]:
    """The base job template of a pool of this type. UserError where an image is missing, or a process would ignore it."""
    if (kind == "process") == (image is not None):
        cure = "a process runs without one; take --image out" if image else f"--type {kind} needs --image NAME:TAG"
        raise UserError(f"{cure} (deploy/Containerfile builds one)")
    made: dict[str, Any] = json.loads((root / TEMPLATES / f"{kind}.json").read_text())
    properties = made["variables"]["properties"]
    properties["env"]["default"] = dict(variables)
    if image is not None:
        properties["image"]["default"] = image
    return made


def given(client: SyncPrefectClient, kind: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a container: addresses, and references to the blocks of secrets. Those that are set here are saved;
    a block that exists already is used as it is. UserError where one that is needed is neither."""
    from prefect.blocks.system import Secret

    variables = {name: environment[name] for name in ADDRESSES if environment.get(name)} | OWN
    check_addresses(kind, variables, environment.get("PREFECT_API_URL", ""))
    for name in SECRETS:
        if value := environment.get(name):
            Secret(value=value).save(block(name), overwrite=True)
        if value or has_block(client, block(name)):
            variables[name] = f"{{{{ prefect.blocks.secret.{block(name)} }}}}"
    if missing := [f"{name} ({what})" for name, what in NEEDED.items() if name not in variables]:
        raise UserError(f"a {kind} pool needs what its containers cannot guess; set here: {', '.join(missing)}")
    return variables


def check_addresses(kind: str, variables: Mapping[str, str], prefect: str) -> None:
    """UserError for an address that leads a container to itself. With a Prefect server on this machine, Prefect's Docker
    worker gives its containers the machine's own network, and there the address is right."""
    if kind == "docker" and urlsplit(prefect).hostname in LOOPBACK:
        return
    for name, value in ({"PREFECT_API_URL": prefect} | dict(variables)).items():
        if urlsplit(value).hostname in LOOPBACK:
            raise UserError(
                f"{name} is {value}, and in a container that is the container itself: give an address that it can reach"
            )


def block(name: str) -> str:
    """The name of the secret block that holds a variable."""
    return "flywheel-" + name.removeprefix("FLYWHEEL_").lower().replace("_", "-")


def has_block(client: SyncPrefectClient, name: str) -> bool:
    """Whether the server has a secret block of this name."""
    from prefect.exceptions import ObjectNotFound

    try:
        client.read_block_document_by_name(name, "secret")
    except ObjectNotFound:
        return False
    return True
