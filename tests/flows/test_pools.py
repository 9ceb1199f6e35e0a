"""The work pools' base job templates, against Prefect's own classes and the templates that it knows for each type; what a
container is told, and that no template holds a secret. The server is a fake that keeps pools, blocks and limits."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prefect
import pytest
from prefect.blocks.system import Secret
from prefect.exceptions import ObjectNotFound
from prefect.utilities.schema_tools.validation import is_valid_schema, validate
from prefect.workers.base import BaseJobConfiguration
from prefect.workers.process import ProcessJobConfiguration

from flows.deployment import pools
from steps.core.errors import UserError
from tests.conftest import ROOT

KNOWN = Path(prefect.__file__).parent / "server/api/collections_data/views/aggregate-worker-metadata.json"
PACKAGES = {"process": "prefect", "docker": "prefect-docker", "kubernetes": "prefect-kubernetes"}
IMAGES = {"process": None, "docker": "agent-flywheel:cpu", "kubernetes": "agent-flywheel:cpu"}
ENVIRONMENT = {
    "PREFECT_API_URL": "https://prefect.example/api",
    "MLFLOW_TRACKING_URI": "https://mlflow.example",
    "MLFLOW_TRACKING_PASSWORD": "pw-1",
    "FLYWHEEL_LEDGER_URL": "postgresql://user:pw-2@db.example/ledger",
    "FLYWHEEL_GIT_URL": "https://token-3@git.example/project",
    "AWS_SECRET_ACCESS_KEY": "key-4",
}


class FakeClient:
    """A server that keeps what it is given."""

    def __init__(self) -> None:
        self.pools: dict[str, Any] = {}
        self.blocks: dict[str, str] = {}
        self.limits: dict[str, int] = {}

    def read_work_pool(self, name: str) -> Any:
        if name not in self.pools:
            raise ObjectNotFound(KeyError(name))
        return self.pools[name]

    def create_work_pool(self, pool: Any) -> None:
        self.pools[pool.name] = pool

    def update_work_pool(self, name: str, changes: Any) -> None:
        self.pools[name].base_job_template = changes.base_job_template

    def upsert_global_concurrency_limit_by_name(self, name: str, limit: int) -> None:
        self.limits[name] = limit

    def read_block_document_by_name(self, name: str, block_type_slug: str) -> Any:
        if block_type_slug != "secret" or name not in self.blocks:
            raise ObjectNotFound(KeyError(name))
        return SimpleNamespace(data={"value": self.blocks[name]}, block_type_slug="secret")


class FakeWorkersClient(FakeClient):
    """The same, as a worker asks it."""

    async def read_block_document_by_name(self, name: str, block_type_slug: str) -> Any:
        return FakeClient.read_block_document_by_name(self, name, block_type_slug)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeWorkersClient:
    made = FakeWorkersClient()

    def save(block: Secret, name: str, overwrite: bool) -> None:
        made.blocks[name] = block.get()

    monkeypatch.setattr(Secret, "save", save)
    monkeypatch.setattr(pools, "has_block", lambda client, name: name in client.blocks)
    for name in (*pools.ADDRESSES, *pools.SECRETS, "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return made


def made(client: Any, kind: str) -> dict[str, Any]:
    pools.set_up(client, ROOT, f"a {kind} pool", kind, IMAGES[kind], 3)
    template: dict[str, Any] = json.loads(json.dumps(client.pools[f"a {kind} pool"].base_job_template))
    return template


@pytest.mark.parametrize("kind", pools.TYPES)
def test_a_template_has_what_prefect_s_own_has(client: FakeWorkersClient, kind: str) -> None:
    """But for `privileged` and `labels` where they are not needed. Its variables are a valid schema, with valid defaults."""
    template = made(client, kind)
    known = json.loads(KNOWN.read_text())[PACKAGES[kind]][kind]["default_base_job_configuration"]
    left_out = {"privileged"} | ({"cpu_limit", "memory_limit"} if kind == "kubernetes" else set())
    assert known["job_configuration"].keys() - template["job_configuration"].keys() <= left_out
    variables = template["variables"]
    assert known["variables"]["properties"].keys() - variables["properties"].keys() <= left_out
    is_valid_schema(variables, preprocess=False)
    defaults = {name: entry["default"] for name, entry in variables["properties"].items() if "default" in entry}
    assert not validate(defaults, variables, preprocess=False)
    named = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"])))
    assert named == set(variables["properties"]), "each variable is read, and what is read is one"
    assert all(entry.get("description") for entry in variables["properties"].values())


@pytest.mark.parametrize("kind", pools.TYPES)
def test_prefect_resolves_a_template_to_a_job(client: FakeWorkersClient, kind: str) -> None:
    """With Prefect's own classes of this version: the secrets are in the job's variables, and nowhere before."""
    template = made(client, kind)
    for secret in ("pw-1", "pw-2", "token-3", "key-4"):
        assert secret not in json.dumps(template)
    job: Any = type("Job", (BaseJobConfiguration,), {"model_config": {"extra": "allow"}})
    chosen: Any = ProcessJobConfiguration if kind == "process" else job
    resolved = asyncio.run(chosen.from_template_and_values(template, {"env": {"MORE": "1"}}, client=client))
    assert resolved.env["FLYWHEEL_POOL"] == f"a {kind} pool"
    assert resolved.env["MORE"] == "1"
    assert client.limits == {f"flywheel-a {kind} pool": 3}
    if kind == "process":
        assert resolved.env.keys() == {"FLYWHEEL_POOL", "MORE"}
        return
    expected = {name: value for name, value in ENVIRONMENT.items() if name != "PREFECT_API_URL"}
    assert resolved.env.items() >= (expected | pools.OWN).items()
    image = resolved.image if kind == "docker" else resolved.job_manifest["spec"]["template"]["spec"]["containers"][0]
    assert "agent-flywheel:cpu" in str(image)


def test_a_pod_has_no_rights_that_a_run_does_not_need(client: FakeWorkersClient) -> None:
    pod = made(client, "kubernetes")["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "privileged" not in json.dumps(made(client, "docker"))


def test_a_pool_is_brought_up_to_date_and_keeps_its_type(
    client: FakeWorkersClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that exists is used where the variable is not set any more."""
    made(client, "docker")
    monkeypatch.delenv("FLYWHEEL_LEDGER_URL")
    env = made(client, "docker")["variables"]["properties"]["env"]["default"]
    assert env["FLYWHEEL_LEDGER_URL"] == "{{ prefect.blocks.secret.flywheel-ledger-url }}"
    assert "HF_TOKEN" not in env
    with pytest.raises(UserError, match=r"the work pool a docker pool is of the type docker: give --type docker"):
        pools.set_up(client, ROOT, "a docker pool", "process", None, 1)


def test_what_a_container_cannot_guess_is_asked_for(client: FakeWorkersClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLYWHEEL_GIT_URL")
    with pytest.raises(UserError, match=r"a docker pool needs .*FLYWHEEL_GIT_URL \(the repository"):
        made(client, "docker")
    assert not client.pools


@pytest.mark.parametrize(
    ("kind", "prefect_url", "mlflow_url", "refused"),
    [
        ("kubernetes", "https://prefect.example/api", "http://127.0.0.1:5000", "MLFLOW_TRACKING_URI is http"),
        ("kubernetes", "http://localhost:4200/api", "https://mlflow.example", "PREFECT_API_URL is http"),
        ("docker", "https://prefect.example/api", "http://127.0.0.1:5000", "MLFLOW_TRACKING_URI is http"),
        ("docker", "http://127.0.0.1:4200/api", "http://127.0.0.1:5000", ""),  # the container has the machine's network
    ],
)
def test_an_address_that_leads_a_container_to_itself_is_refused(
    kind: str, prefect_url: str, mlflow_url: str, refused: str
) -> None:
    variables = {"MLFLOW_TRACKING_URI": mlflow_url}
    if not refused:
        pools.check_addresses(kind, variables, prefect_url)
        return
    with pytest.raises(UserError, match=refused):
        pools.check_addresses(kind, variables, prefect_url)


@pytest.mark.parametrize(("kind", "image"), [("process", "agent-flywheel:cpu"), ("docker", None), ("kubernetes", None)])
def test_an_image_belongs_to_containers(kind: str, image: str | None) -> None:
    with pytest.raises(UserError, match="--image"):
        pools.template(ROOT, kind, image, {})
