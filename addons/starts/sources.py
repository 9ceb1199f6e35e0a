"""Where an adapter to start from comes from: the registry, a kept run, a folder, the Hugging Face Hub.

Each is copied to a folder and checked against params.yaml there, by files of a few kilobytes: no model is loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from addons.starts.section import Started
from flows.deployment import workspace
from flows.deployment.checkout import restore, source
from flows.training import start
from steps.core.errors import UserError
from steps.core.params import Params, Policy
from steps.core.yaml_text import read_mapping
from steps.policy.adapter import FILES, adapter_hash, shapes
from steps.policy.loading import no_path
from steps.project import lock
from steps.project.chain import BASE, read_chain
from steps.project.dvc import dvc, dvc_output
from steps.project.git import git
from steps.registry.model import fetched, read_registry

CHECKPOINT = ("state.json", "state.safetensors")
# Settings of PEFT's LoRA that change what an adapter computes, and that training here does not know.
UNKNOWN = """use_dora use_rslora modules_to_save rank_pattern alpha_pattern layers_to_transform trainable_token_indices
    target_parameters fan_in_fan_out""".split()


class Brought(NamedTuple):
    """An adapter that was brought to a folder."""

    resolved: str  # an address that stays the same
    base_model: str | None  # that it was trained with, as it was named there; None: not known
    revision: str | None = None
    about: str = ""  # for a person, behind a comma


def bring(root: Path, params: Params, to: Path) -> dict[str, Any]:
    """Copy the adapter of policy.start_from, and its checkpoint where start_optimizer wants it, to the folder `to`; what it
    is. UserError where it is not there, or does not fit the policy."""
    policy, asked = params.policy, Started.of(params.policy)
    address = str(asked.start_from)
    if address.startswith("models:/"):
        brought = from_registry(root, address, to)
    elif address.startswith("run:"):
        brought = from_run(root, address, to, asked.start_optimizer)
    elif Path(address).exists():
        brought = from_folder(Path(address), to, asked.start_optimizer)
    else:
        brought = from_hub(address, to, asked.start_optimizer)
    check(to, policy, brought)
    return {"from": address, "resolved": brought.resolved, "adapter": adapter_hash(to), "about": brought.about}


def bring_champion(root: Path, params: Params, to: Path) -> dict[str, Any]:
    """Copy the champion's adapter to the folder `to`, for rollout.opponent; what it is. UserError where there is none, or
    where it does not fit the policy, whose engine plays it."""
    address = start.champion_of(params)
    brought = from_registry(root, address, to)
    check(to, params.policy, brought, "rollout.opponent")
    return {"from": address, "resolved": brought.resolved, "adapter": adapter_hash(to), "about": brought.about}


def fork(name: str) -> tuple[str, list[str]]:
    """(the text of a kept run's params.yaml, the assignments that make a run start from that run's iteration), for
    `--from <run>/<NNN>`. UserError where there is no such run."""
    root = Path(git(Path.cwd(), "rev-parse", "--path-format=absolute", "--git-common-dir")).parent
    run, number = named(name.removeprefix("run:"))
    made = source(root, run)
    text = made.files.get("params.yaml") or git(root, "show", f"{made.commit}:params.yaml") + "\n"
    address = f"run:{run}/{number}" if number else f"run:{run}"
    changes = [f"policy.start_from={json.dumps(address)}", "policy.start_optimizer=true"]
    return text, [*changes, *(["sft=null"] if read_mapping(text, f"params.yaml of {run}").get("sft") else [])]


def from_registry(root: Path, address: str, to: Path) -> Brought:
    """A registered version. Its hash is checked against its tag."""
    name, label = re.split(r"[@/]", address.removeprefix("models:/"))
    model = read_registry(root, name)
    version = model.version(label)
    whole = fetched(model, version, to.with_name("version"))
    copy(whole, FILES, to)
    shutil.rmtree(whole)
    success = version.tags.get("test_success")
    return Brought(
        f"models:/{name}/{version.version}",
        version.tags.get("base_model"),
        None if version.tags.get("base_revision") == "None" else version.tags.get("base_revision"),
        f", test success {float(success):.3f}" if success else "",
    )


def from_run(root: Path, address: str, to: Path, optimizer: bool) -> Brought:
    """An iteration of a kept run, from DVC's cache or remote."""
    name, number = named(address.removeprefix("run:"))
    with checked_out(root, name) as run:
        chain = read_chain(run.folder)
        number = number or str((chain.get("tested") or {}).get("best"))
        listed = [BASE, *(chain.get("started") or {}), *(chain.get("warmed") or {}), *(chain.get("iterations") or {})]
        if number not in listed:
            raise UserError(f"policy.start_from: the run {name} has no iteration {number}; it has {', '.join(listed)}")
        folder = f"run/{number}"
        run.have([f"{folder}/adapter", f"{folder}/evaluation", *([f"{folder}/checkpoint"] if optimizer else [])])
        copy(run.folder / folder / "adapter", FILES, to)
        if optimizer:
            copy(run.folder / folder / "checkpoint", CHECKPOINT, to)
        summary = json.loads((run.folder / folder / "evaluation" / "summary.json").read_text())
        success = summary.get("success")
        about = "" if success is None else f", validation success {success:.3f}"
        policy = run.params.get("policy") or {}
        base = policy.get("base_model", Policy.model_fields["base_model"].default)
        return Brought(f"run:{name}/{number}", base, policy.get("revision"), about)


def from_folder(folder: Path, to: Path, optimizer: bool) -> Brought:
    """A folder with an adapter, or one with a checkpoint that is beside its adapter."""
    adapter, checkpoint = folder, folder
    if not (folder / FILES[0]).is_file() and (folder / CHECKPOINT[0]).is_file():
        adapter = folder.parent / "adapter"
    elif not (folder / CHECKPOINT[0]).is_file():
        checkpoint = folder.parent / "checkpoint"
    if missing := [name for name in FILES if not (adapter / name).is_file()]:
        raise UserError(
            f"policy.start_from: {adapter} has no {' and no '.join(missing)}: name a folder that holds a PEFT adapter, or a "
            "checkpoint in a folder beside its adapter, as run/003/checkpoint is"
        )
    copy(adapter, FILES, to)
    if optimizer:
        if missing := [name for name in CHECKPOINT if not (checkpoint / name).is_file()]:
            raise UserError(
                f"policy.start_optimizer: {checkpoint} has no {' and no '.join(missing)}, so there is no optimiser state to "
                "carry on; take start_optimizer out, or name a folder with a checkpoint"
            )
        copy(checkpoint, CHECKPOINT, to)
    config = read_config(to)
    return Brought(
        f"{folder}, adapter {adapter_hash(to)}", config.get("base_model_name_or_path"), config.get("revision")
    )


def from_hub(address: str, to: Path, optimizer: bool) -> Brought:
    """A PEFT adapter on the Hugging Face Hub."""
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?", address)
    if match is None:
        raise UserError(
            f"policy.start_from: there is no folder {address}, and it is no models:/<name>@<alias>, run:<name>/<iteration> "
            "or <owner>/<name> on the Hugging Face Hub"
        )
    if optimizer:
        raise UserError(
            f"policy.start_optimizer would have no effect: an adapter on the Hub, {address}, has no optimiser state; take "
            "it out"
        )
    no_path(match[1], "policy.start_from")
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "5")
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(match[1], revision=match[2], allow_patterns=list(FILES)))
    except (OSError, ValueError) as problem:
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
        raise UserError(
            f"policy.start_from: {address} is no folder here, and cannot be had from the Hugging Face Hub ({reason})"
        ) from problem
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise UserError(f"policy.start_from: {address} on the Hub has no {' and no '.join(missing)}: no PEFT adapter")
    copy(folder, FILES, to)
    config = read_config(to)
    return Brought(f"{match[1]}@{folder.name}", config.get("base_model_name_or_path"))


class RestoredRun(NamedTuple):
    """A kept run in a worktree of its own."""

    name: str
    folder: Path
    params: dict[str, Any]  # its params.yaml as it is written, which older code may have read otherwise

    def have(self, outputs: list[str]) -> None:
        """Check out these outputs, after fetching what DVC's cache lacks, where there is a DVC remote."""
        if dvc_output(self.folder, "remote", "list").strip():
            dvc(self.folder, "fetch", "--quiet", *outputs, check=False)
        dvc(self.folder, "checkout", "--force", "--quiet", *outputs, check=False)
        if missing := [path for path in outputs if not (self.folder / path).exists()]:
            raise UserError(
                f"the run {self.name} is kept, and its {', '.join(missing)} are not in DVC's cache: another machine may "
                "have them (`.venv/bin/dvc remote add`), or flows.prune removed them; "
                f"`.venv/bin/python -m flows.reproduce {self.name}` makes them again"
            )

    def md5(self, output: str) -> str:
        """The md5 of an output, as dvc.lock recorded it."""
        entries = lock.read_lock(self.folder).values()
        return next(str(out["md5"]) for entry in entries for out in entry.get("outs", []) if out["path"] == output)


@contextlib.contextmanager
def checked_out(root: Path, name: str) -> Iterator[RestoredRun]:
    """Inside, the run of this name (also an MLflow run, or a git revision) is in a worktree, without its data."""
    run = source(root, name)
    folder = root / workspace.WORKTREES / f"start-{run.commit[:8]}-{os.getpid()}"
    try:
        restore(root, folder, run)
        yield RestoredRun(name, folder, yaml.safe_load((folder / "params.yaml").read_text()) or {})
    finally:
        if folder.exists():
            workspace.remove(root, folder)


def named(text: str) -> tuple[str, str | None]:
    """(run, iteration) of <run>/<NNN>; None where it names no iteration."""
    run, _, number = text.rpartition("/")
    return (run, number) if run and re.fullmatch(r"\d{3}", number) else (text, None)


def copy(folder: Path, names: tuple[str, ...], to: Path) -> None:
    """Copy these files of a folder to another one."""
    to.mkdir(exist_ok=True)
    for name in names:
        shutil.copyfile(folder / name, to / name)


def read_config(folder: Path) -> dict[str, Any]:
    """adapter_config.json. UserError where it is none."""
    try:
        config = json.loads((folder / FILES[0]).read_text(encoding="utf-8"))
    except ValueError as problem:
        raise UserError(f"policy.start_from: {FILES[0]} is no JSON ({problem}): the adapter is damaged") from None
    if not isinstance(config, dict):
        raise UserError(f"policy.start_from: {FILES[0]} is no JSON object: the adapter is damaged")
    return config


def check(folder: Path, policy: Policy, brought: Brought, key: str = "policy.start_from") -> None:
    """UserError where the adapter in a folder is not one of this policy: kind, rank, scale, base model or layers."""
    config, name = read_config(folder), brought.resolved
    where = f"{key}: {name}"
    if config.get("peft_type") != "LORA" or (used := [key for key in UNKNOWN if config.get(key)]):
        kind = (
            config.get("peft_type") if config.get("peft_type") != "LORA" else f"a LoRA adapter with {', '.join(used)}"
        )
        raise UserError(f"{where} is {kind}, and only plain LoRA adapters can be trained on")
    if config.get("bias", "none") != "none":
        raise UserError(
            f"{where} trains biases, too ({config['bias']}), and only plain LoRA adapters can be trained on"
        )
    for key, field, wanted in (("r", "rank", policy.lora.rank), ("lora_alpha", "alpha", policy.lora.alpha)):
        if config.get(key) != wanted:
            raise UserError(
                f"{where} has {key} {config.get(key)}, and policy.lora.{field} is {wanted:g}: set it to {config.get(key)}, "
                "or start from another adapter"
            )
    if not same_base(brought.base_model, policy) or (
        brought.revision and policy.revision and brought.revision != policy.revision
    ):
        revision = f" at {brought.revision}" if brought.revision else ""
        raise UserError(
            f"{where} was trained on the base model {brought.base_model}{revision}, and policy.base_model is "
            f"{policy.base_model}{f' at {policy.revision}' if policy.revision else ''}: set that to its base model, or "
            "start from another adapter"
        )
    sizes = shapes(folder / FILES[1])
    if wrong := sorted({size[0] for key, size in sizes.items() if ".lora_A." in key} - {policy.lora.rank}):
        raise UserError(f"{where} has matrices of rank {wrong[0]}, and policy.lora.rank is {policy.lora.rank}")


def same_base(trained: str | None, policy: Policy) -> bool:
    """Whether the base model that an adapter names is that of the policy: by name, or by the folder, wherever it is."""
    if (
        trained is None or policy.is_gguf
    ):  # the second names the folder that it was converted to: the weights are checked
        return True
    ours, theirs = Path(policy.base_model), Path(trained)
    return trained == policy.base_model or (ours.is_dir() and theirs.parts[-len(ours.parts) :] == ours.parts)
