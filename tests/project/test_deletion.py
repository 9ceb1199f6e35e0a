"""Each add-on can be deleted: the core works on without a word of it, and refuses a setting or an option that names it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steps.core import ports, section
from steps.core.params import Params
from tests.conftest import ROOT, change_params, copy_project, python, run

ADDONS = """accelerate advantages drawing families gguf gpu judges kernels lineage masking models overlap pictures planning
    production quicker readiness report selfplay sharing starts supervised templates terms trackers tripwires""".split()
TOY: dict[str, object] = {
    "scenarios": {"train": 8, "val": 8, "test": 8},
    "rollout": {"scenarios": 4, "attempts": 4, "temperature": 1.0, "max_tokens": 64},
    "train": {"iterations": 1},
}
# Imports every module of the core, and says what would not be imported, and what of the add-ons the core still knows. The
# packages that are named to it are as if they were not installed.
LOOK = """
import importlib, json, sys
from pathlib import Path
sys.modules |= dict.fromkeys(sys.argv[1:])
failed = {}
for folder in ("environments", "steps", "flows", "viewer"):
    for path in sorted(Path(folder).rglob("*.py")):
        name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        try:
            importlib.import_module(name)
        except Exception as problem:  # a package that is not installed, or a script of Alembic's
            failed[name] = f"{type(problem).__name__}: {problem}"
from flows import deploy
from flows.diagnosis import findings, machine, secret_files
print(json.dumps({
    "failed": failed,
    "loaded": sorted(name for name in sys.modules if name.startswith("addons.")),
    "services": sorted(machine.services()),
    "forms": sorted(secret_files.all_forms()),
    "deployments": deploy.deployments(Path()),
}))
"""
# What names an add-on, with these settings, and the sentence that refuses it.
NAMED: dict[str, tuple[str, dict[str, object], str]] = {
    "gguf": (
        "from steps.core.params import Policy; from steps.policy.loading import local; "
        "local(Policy(base_model='model.gguf', revision='0' * 64))",
        {},
        "policy.base_model: gguf is brought by an add-on that addons/ does not have",
    ),
    "gpu": (
        "import torch; torch.cuda.is_available = lambda: True; from steps.core.params import Policy; "
        "from steps.policy.loading import load_model; load_model(Policy())",
        {},
        "UserError: a run on a GPU needs the add-on gpu, which addons/ does not have",
    ),
    "judges": (
        "from steps.core.params import Params, load; load('params.yaml', Params)",
        {"score": {"judges": {"rule": 0.0, "criteria": 1.0}}},
        "score.judges.criteria is brought by the add-on judges, which addons/ does not have",
    ),
    "models": (
        "from environments import load; from steps.core.params import Evaluate, Policy; "
        "from steps.evaluate import by_messages; from steps.sampling.job import Job; "
        "by_messages(Job(Policy(kind='scripted'), Evaluate(), None, load('multiplication'), [], 'val', 0))",
        {},
        "policy.kind: scripted is brought by an add-on that addons/ does not have",
    ),
    "starts": (
        "from flows.training import start; from steps.core.params import Params, load; "
        "start.prepare(load('params.yaml', Params))",
        {"policy": {"start_from": "run:nightly/001"}},
        "policy.start_from is brought by the add-on starts, which addons/ does not have",
    ),
    "trackers": (
        "from steps.analytics.__main__ import main; main(['--langfuse'])",
        {},
        "--langfuse: langfuse is brought by an add-on that addons/ does not have",
    ),
}
# What params.yaml, the doctor and what other add-ons need make of an add-on that is gone; without importing anything heavy.
SEEN = """
import json, sys
from pathlib import Path
from flows.diagnosis import findings, machine
from flows.repro.parameters import set_params
from steps.core import ports, section
from steps.core.errors import UserError
from steps.core.params import Params, parse
def refusal(ask, *given, **more):
    try:
        ask(*given, **more)
    except UserError as problem:
        return str(problem)
texts, options, programs = json.load(sys.stdin)
print(json.dumps({
    "schema": sorted(Params.model_json_schema()["$defs"]),
    "refused": [refusal(parse, text, Path("params.yaml"), Params) for text in texts],
    "options": [refusal(set_params, [option], dry_run=True) for option in options],
    "needed": [refusal(exec, program, {}) for program in programs],
    "doctor": [repr(part) for part in findings.parts()],
    "findings": [finding.text for finding in machine.addons(None)],
    "loaded": sorted(name for name in sys.modules if name.startswith("addons.")),
}))
"""
SETTINGS: dict[str, Any] = {  # place in params.yaml -> a setting there, also one that says what is so anyway
    "agents": {"concurrency": 64},
    "evaluate.judge": {"endpoint": {"model": "m"}},
    "evaluate.references": True,
    "evaluate.shards": 2,
    "policy.cluster": "auto",
    "policy.deterministic": True,
    "policy.endpoint": {"model": "m"},
    "policy.engines": 2,
    "policy.gpu_memory": 0.4,
    "policy.quantization": "bnb-4bit",
    "policy.rollout_quantization": "fp8",
    "policy.servers": {"wait_seconds": 5},
    "policy.share_weights": True,
    "policy.start_from": "run:nightly",
    "policy.start_optimizer": True,
    "policy.tensor_parallel": 2,
    "promote.decides": "regression",
    "promote.false_alarms": 0.1,
    "rollout.curriculum": {"low": 0.2},
    "rollout.grammar": "free",
    "rollout.opponent": {"every": 2},
    "rollout.resample": 1,
    "rollout.shards": 2,
    "scenarios.generated": "more.jsonl",
    "scenarios.ingested": {"share": 0.5},
    "score.criteria": {"accuracy": 0.4},
    "score.judges.criteria": 0.5,
    "score.judges.ruler": 1.0,
    "score.ruler": {"endpoint": {"model": "m"}},
    "serve": {"canary": 0.0},
    "sft": {"demonstrations": ["own.jsonl"]},
    "train.overlap": 1,
    "train.tripwires": "stop",
    "train.way": "sft",
    "update.advantages": "gigpo",
    "update.cast_lm_head_to_fp32": True,
    "update.delta": 1.5,
    "update.entropy_coef": 0.1,
    "update.entropy_target": 0.3,
    "update.launcher": "accelerate",
    "update.lr_scheduler_kwargs": {"min_lr": 1e-5},
    "update.lr_scheduler_type": "linear",
    "update.max_completion_len": 64,
    "update.max_steps": 8,
    "update.multi_objective_aggregation": "normalize_then_sum",
    "update.off_policy_mask_threshold": 0.5,
    "update.processes": 2,
    "update.ref_model_mixup_alpha": 0.5,
    "update.ref_model_sync_steps": 8,
    "update.router_aux_loss_coef": 0.01,
    "update.sapo_temperature_neg": 1.0,
    "update.sapo_temperature_pos": 1.0,
    "update.shard": True,
    "update.soft_punish_cache": 8,
    "update.sync_ref_model": True,
    "update.top_entropy_quantile": 0.2,
    "update.use_adaptive_entropy": True,
    "update.vespo_k_neg": 1.0,
    "update.vespo_k_pos": 1.0,
    "update.vespo_lambda_neg": 1.0,
    "update.vespo_lambda_pos": 1.0,
    "update.vllm_importance_sampling_clip_max": 2.0,
    "update.vllm_importance_sampling_clip_min": 0.5,
    "update.vllm_importance_sampling_correction": True,
    "update.vllm_importance_sampling_mode": "token_mask",
    "update.warmup_steps": 2,
    "update.weight_decay": 0.1,
}
NEEDING = {  # add-on -> what another one does with it, and who says that it is not there
    "gpu": ("from addons.planning import memory; memory.training()", "a plan for a GPU"),
    "models": ("from steps.core.ports import bring; bring('judge', 'ruler', 'score.judges')", "the add-on judges"),
    "lineage": (
        "from addons.production import forget; from pathlib import Path; forget.run(Path(), ['x'], Path('x'))",
        "addons.production.forget",
    ),
    "masking": ("from addons.production.traces import sources; sources.ingest(*[None] * 7)", "ingestion"),
    "trackers": (
        "from addons.production.traces import langfuse_traces as each; next(each.fetch(''))",
        "the source langfuse",
    ),
}

IMPORTED = "flows.train, flows.evaluate, steps.rollout, steps.evaluate, steps.update, steps.sampling.play, viewer.app"
TESTS = """tests/sampling tests/core/test_ports.py tests/viewer/test_overview.py tests/stages/test_evaluate.py
    tests/stages/test_code.py""".split()
ASKED = {  # add-on -> what needs it, and the sentence
    "agents": (
        "play(Job(Policy(), Rollout(), None, load('tests.support.agents.onlooker'), [], '001', 1, task='mine'))",
        "task: mine is an agent of your own: gateway is brought by an add-on that addons/ does not have (there: none)",
    ),
    "fleet": (
        "play(Job(Policy(kind='ray'), Rollout(), None, load('multiplication'), [], '001', 1))",
        "policy.kind: ray is brought by an add-on that addons/ does not have (there: none)",
    ),
}


CLASSES = {  # of params.yaml, that are not there without an add-on
    "agents": {"Agents"},
    "drawing": {"Curriculum"},
    "selfplay": {"Opponent"},
    "fleet": {"Servers"},
    "judges": {"Criteria", "Ruler"},
    "models": {"Endpoint", "Criteria", "Ruler"},  # the judges' section names Endpoint
    "production": {"Ingested", "Serve"},
    "supervised": {"Sft"},
}


def deleted(folder: Path, *names: str) -> Path:
    """A copy of the tree without these add-ons and their tests."""
    copy_project(folder)
    for name in names:
        shutil.rmtree(folder / "addons" / name)
        shutil.rmtree(folder / "tests/addons" / name)
    return folder


def targets(name: str) -> set[str]:
    path = ROOT / "addons" / name / "targets.mk"
    return set(re.findall(r"^([a-z-]+):(?!=)", path.read_text(), re.MULTILINE)) if path.exists() else set()


def looked(folder: Path, *lacking: str) -> dict[str, Any]:
    done = run([sys.executable, "-c", LOOK, *lacking], folder)
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return content


def linked(folder: Path, *names: str) -> Path:
    """The tree without add-ons, as links."""
    for path in ROOT.iterdir():
        if path.name in ("Makefile", "environments", "flows", "params.yaml", "steps", "tasks_data"):
            (folder / path.name).symlink_to(path)
    (folder / "addons").mkdir()
    for path in (ROOT / "addons").iterdir():
        if path.name not in names:
            (folder / "addons" / path.name).symlink_to(path)
    return folder


def run_seen(folder: Path, given: list[list[str]]) -> dict[str, Any]:
    """What SEEN makes of texts of params.yaml, options, and programs."""
    words = [sys.executable, "-c", SEEN]
    done = subprocess.run(words, cwd=folder, input=json.dumps(given), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return content


def inside(key: str, value: Any) -> str:
    """A params.yaml with one setting, and a judge."""
    for name in reversed(key.split(".")):
        value = {"rule": 1.0, **value} if name == "judges" else value
        value = {name: value}
    return json.dumps(value)


def test_the_table_of_sections_is_what_the_addons_bring() -> None:
    assert SETTINGS.keys() == ports.SECTIONS.keys()
    for key, addon in ports.SECTIONS.items():
        place, _, name = key.rpartition(".")
        kind = Params if not place else type(section.at(Params(), place))
        bases = [base for base in kind.__mro__ if base.__module__.startswith("addons.")]
        of_addons = [base for base in bases if name in base.__annotations__]
        modules = [base.__module__ for base in of_addons] or [dict(section.brought())[key].__module__]
        assert modules[0].startswith(f"addons.{addon}.section"), key


def test_help_and_doctor_no_longer_know_those_without_a_setting(tmp_path: Path) -> None:
    """Nothing refuses them, and no other one needs them: they are gone together."""
    names = {*ADDONS, *ASKED} - {*ports.SECTIONS.values(), *NEEDING}
    assert {"report", "templates"} <= names
    folder = linked(tmp_path, *names)
    done = run_seen(folder, [[], [], []])
    assert not [name for name in names if f"addons.{name}" in json.dumps([done["doctor"], done["loaded"]])]
    assert set[str]().union(*CLASSES.values()) <= {*done["schema"]}
    lacking = {addon.name: [name for name in addon.needs if name in names] for addon in ports.addons()}
    assert [text for text in done["findings"] if "needs" in text] == [
        f"{name} needs {', '.join(needed)}, and refuses without it what it is needed for"
        for name, needed in lacking.items()
        if needed and name not in names
    ]
    listed = run(["make", "help"], folder).stdout
    assert set(re.findall(r"^  make (\S+)", listed, re.MULTILINE)).isdisjoint(set[str]().union(*map(targets, names)))
    assert "  make train " in listed


@pytest.mark.parametrize("name", sorted({*ports.SECTIONS.values(), *NEEDING}))
def test_params_help_and_doctor_no_longer_know_it(tmp_path: Path, name: str) -> None:
    """Each add-on alone: a setting of it is refused by a sentence that names it, and so is what another one needs it for."""
    folder = linked(tmp_path, name)
    keys = sorted(key for key, addon in ports.SECTIONS.items() if addon == name)
    texts = [inside(key, SETTINGS[key]) for key in keys]
    texts += [inside("policy.kind", "ray"), inside("update.launcher", "ray")] * (name == "fleet")
    texts += [inside(key, {}) for key in keys if "." in key]  # `rollout.curriculum: {}` asks for one with its defaults
    nothing: list[Any] = [None, 0, {}]
    empty = [inside(key, value) for key in keys for value in (nothing[:2] if "." in key else nothing)]
    options = [f"{key}={json.dumps(SETTINGS[key])}" for key in keys]
    program, who = NEEDING.get(name, ("", ""))
    programs = [program] * bool(program)
    seen = run_seen(folder, [[*texts, *empty], options, programs])
    there = ", ".join(sorted({*ADDONS, *ASKED} - {name}))
    sentences = [f"{key} is brought by the add-on {name}, which addons/ does not have (there: {there})" for key in keys]
    lacking = "ray is brought by an add-on that addons/ does not have (there: {})".format
    more = [f"policy.kind: {lacking('none')}", f"update.launcher: {lacking('accelerate')}"] * (name == "fleet")
    again = [sentence for key, sentence in zip(keys, sentences, strict=True) if "." in key]
    assert seen["refused"] == [
        *(f"params.yaml: {each}" for each in [*sentences, *more, *again]),
        *(None for _ in empty),
    ]
    assert seen["options"] == [f"params.yaml: {sentence}" for sentence in sentences]
    assert seen["needed"] == [f"{who} needs the add-on {name}, which addons/ does not have (there: {there})"] * bool(
        who
    )
    assert set[str]().union(*CLASSES.values()) - {*seen["schema"]} == CLASSES.get(name, set())
    assert f"addons.{name}" not in json.dumps([seen["doctor"], seen["loaded"]])
    assert [text for text in seen["findings"] if f"needs {name}" in text] == [
        f"{addon.name} needs {name}, and refuses without it what it is needed for"
        for addon in ports.addons()
        if name in addon.needs
    ]
    listed = run(["make", "help"], folder).stdout
    assert set(re.findall(r"^  make (\S+)", listed, re.MULTILINE)).isdisjoint(targets(name))
    assert "  make train " in listed


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [(*ADDONS, *ASKED), *(pytest.param((name,), marks=pytest.mark.nightly) for name in ADDONS)],
    ids="-".join,
)
def test_the_core_works_without(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Without all of them, where the modules that need torch or vLLM wait for the night, and by night without each."""
    folder = deleted(tmp_path, *names)
    lacking = ("torch", "vllm") if len(names) > 1 else ()
    content = looked(folder, *lacking)
    assert len([why for why in content["failed"].values() if "torch" in why or "vllm" in why]) < 10
    assert not [why for why in content["failed"].values() if "addons" in why]
    assert not [module for module in content["loaded"] if module.split(".")[1] in names]
    assert ("serve" in content["services"]) == ("production" not in names)
    assert ("flywheel" in content["deployments"]) == ("production" not in names)
    assert ("WANDB_API_KEY" in content["forms"]) == ("trackers" not in names)
    listed = run(["make", "help"], folder).stdout
    gone = set[str]().union(*map(targets, names))
    assert set(re.findall(r"^  make (\S+)", listed, re.MULTILINE)).isdisjoint(gone)
    assert "  make train " in listed
    planned = run(["make", "--dry-run", "--old-file=install", "doctor", "train"], folder).stdout
    assert not [name for name in names if f"addons.{name}" in planned]
    dry = run(python("flows.train", "--task", "multiplication", "--dry-run"), folder)
    assert (dry.returncode, json.loads(dry.stdout)["task"]) == (0, "multiplication"), dry.stderr
    usual = (folder / "params.yaml").read_text()
    for program, settings, sentence in (NAMED[name] for name in NAMED if name in names):
        (folder / "params.yaml").write_text(usual)
        change_params(folder, settings)
        assert sentence in run([sys.executable, "-c", program], folder).stderr


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_run_needs_none_of_them(tmp_path: Path) -> None:
    folder = deleted(tmp_path, *ADDONS)
    change_params(folder, TOY)
    done = run(python("flows.train"), folder, seconds=850)
    run(python("steps.runner.handover", "--stop"), folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "make promote" in done.stdout
    assert not re.search(r"make (ask|serve|plan|ledger|flywheel)", done.stdout)
    assert json.loads((folder / "run/summary.json").read_text())["task"] == "email_search"
    assert (folder / "run/001/adapter/adapter_model.safetensors").is_file()
    assert json.loads((folder / "run/receipt.json").read_text())["name"] == "email_search"


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ASKED)
def test_sampling_works_without_it(name: str, tmp_path: Path) -> None:
    """The core's tests of sampling and of the stages pass, and what needs the add-on is refused by a sentence."""
    folder = deleted(tmp_path, name)
    imported = run([sys.executable, "-c", f"import {IMPORTED}"], folder)
    assert imported.returncode == 0, imported.stderr[-3000:]
    asked, sentence = ASKED[name]
    needed = "from environments import load\nfrom steps.core.params import Policy, Rollout\n"
    needed += "from steps.sampling.job import Job\nfrom steps.sampling.play import play\n"
    assert f"UserError: {sentence}" in run([sys.executable, "-c", needed + asked], folder).stderr
    words = ["-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-m", "not slow and not nightly", *TESTS]
    tested = run([sys.executable, *words], folder, seconds=900)
    assert tested.returncode == 0, tested.stdout[-4000:]
