"""The register stage on a real MLflow store: the gate, the receipt, versions and aliases, what a version holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from addons.report import card
from steps import register
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation, Judged
from steps.core.params import RegisterParams
from steps.policy.adapter import adapter_hash
from steps.project import lock, store
from steps.registry import publish
from steps.registry.publish import registered_version

ROOT = Path(register.__file__).parent.parent
PARAMS = {"task": "toy", "policy": {"base_model": "tasks_data/embedded_policy"}, "register": {"name": "toy"}}


def make_adapter(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text('{"r": 4}')
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def make_evaluation(folder: Path, success: float, adapter: Path, split: str = "test", n: int = 240) -> Path:
    folder.mkdir(parents=True)
    summary = Evaluation(
        split=split,
        adapter_hash=adapter_hash(adapter),
        n=n,
        success=success,
        ci95=(success - 0.06, success + 0.06),
        reward=success,
        turns=3.5,
        tokens=60.0,
    )
    (folder / "summary.json").write_text(summary.model_dump_json())
    return folder


class Run:
    """What the stage reads, in a project's folder, and the stage itself."""

    def __init__(self, root: Path, success: float = 0.85, base: float = 0.45) -> None:
        self.root = root
        base_adapter = make_adapter(root / "run/000/adapter", b"zeros")
        self.base = make_evaluation(root / "run/000/test", base, base_adapter)
        self.adapter, self.evaluation = self.trained("004", success)

    def trained(self, number: str, success: float) -> tuple[Path, Path]:
        adapter = make_adapter(self.root / f"run/{number}/adapter", f"weights of {number}".encode())
        return adapter, make_evaluation(self.root / f"run/{number}/test", success, adapter)

    def register(self, **changed: Any) -> dict[str, Any]:
        receipt = self.root / "receipt.json"
        receipt.unlink(missing_ok=True)
        params = RegisterParams.model_validate(PARAMS | changed.pop("params", {}))
        given = {"adapter": self.adapter, "evaluation": self.evaluation, "base_evaluation": self.base} | changed
        register.register(**given, receipt=receipt, params=params)
        return json.loads(receipt.read_text())

    def versions(self) -> list[Any]:
        found = store.connect(self.root).search_model_versions("name = 'toy'")
        return sorted(found, key=lambda version: int(version.version))

    def aliases(self) -> dict[str, str]:
        aliases = store.connect(self.root).get_registered_model("toy").aliases
        return {alias: str(version) for alias, version in aliases.items()}


def test_a_better_adapter_is_registered(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(here)
    receipt = run.register()
    name = adapter_hash(run.adapter)
    assert receipt == {
        "name": "toy",
        "adapter_hash": name,
        "registered": True,
        "reason": "test success 0.850 is above the base policy's 0.450 (240 scenarios)",
        "base": {"n": 240, "success": 0.45, "ci95": [0.39, 0.51], "reward": 0.45},
        "trained": {"n": 240, "success": 0.85, "ci95": [0.79, pytest.approx(0.91)], "reward": 0.85},
    }
    (version,) = run.versions()
    expected = {
        "adapter_hash": name,
        "task": "toy",
        "base_model": "tasks_data/embedded_policy",
        "base_revision": "None",
        "test_success": "0.85",
        "test_n": "240",
        "base_success": "0.45",
    }
    assert version.tags.items() >= expected.items()
    assert card.is_card(version.description)
    assert (
        "| this adapter | 0.850 | 0.790 to 0.910 | 0.850 | 3.500 | 60.000 | 240 scenarios, taken as independent |"
        in version.description
    )
    assert run.aliases() == {"challenger": "1"}, "the gate makes champions, and no version is one before it"
    assert registered_version("toy", name) == "1"
    assert registered_version("toy", "another") is None
    assert registered_version("another", name) is None

    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.address(here))
    got = Path(mlflow.artifacts.download_artifacts("models:/toy@challenger", dst_path=str(here / "got")))
    assert adapter_hash(got) == name
    assert {path.name for path in got.iterdir()} == {path.name for path in run.adapter.iterdir()} | {"README.md"}
    assert (got / "README.md").read_text().endswith(version.description)


def test_the_card_tells_what_dvc_recorded(here: Path) -> None:
    """Parameters of the last of two iterations, and the hashes of what it read; the same call, the same text."""
    run = Run(here)
    common = {"seed": 7, "policy": PARAMS["policy"], "rollout": {"attempts": 4}}

    def entry(reads: list[str], writes: list[str], **params: Any) -> dict[str, Any]:
        files = [[{"path": path, "md5": f"md5 of {path}"} for path in paths] for paths in (reads, writes)]
        return {"cmd": "x", "deps": files[0], "outs": files[1], "params": {"params.yaml": params}}

    stages = {
        "scenarios": entry([], ["run/scenarios"], task="toy", seed=7, scenarios={"train": 24, "val": 12, "test": 30}),
        "initialise": entry([], ["run/000/checkpoint"], seed=7),
        "score@004": entry(
            ["run/scenarios"], ["run/004/rewards.parquet"], score={"judges": {"rule": 0.5, "criteria": 1}}
        ),
    }
    for number, before, rate in (("003", "000", 1e-4), ("004", "003", 3e-4)):
        batch = f"run/{number}/trajectories.parquet"
        stages[f"rollout@{number}"] = entry(["run/scenarios"], [batch], **common)
        read = [batch, f"run/{before}/checkpoint"] + [f"run/{number}/rewards.parquet"] * (number == "004")
        made = [f"run/{number}/adapter", f"run/{number}/checkpoint"]
        stages[f"update@{number}"] = entry(read, made, update={"learning_rate": rate}, **common)
    (here / "dvc.lock").write_text(yaml.safe_dump({"stages": stages}))
    (here / "run/scenarios").mkdir()
    (here / "run/scenarios/contamination.json").write_text('{"passed": true, "found": {"source": 0}}')
    run.register()
    (version,) = run.versions()
    for row in (
        "| learning rate | 0.0003, constant |",
        "| iterations | 2 |",
        "| an iteration | 16 scenarios, 4 attempts at each |",
        "| judges | rule 0.5, criteria 1 |",
        "| seed | 7 |",
        "| scenarios, from the seed | 24 training, 12 validation, 30 test |",
        "| contamination check | passed, 0 pairs too much alike |",
        "| DVC md5 of run/scenarios | md5 of run/scenarios |",
        "| DVC md5 of run/004/trajectories.parquet | md5 of run/004/trajectories.parquet |",
        "| DVC md5 of run/003/checkpoint | md5 of run/003/checkpoint |",
        f"| digest of dvc.lock's entries | {version.tags['dvc_lock']} |",
    ):
        assert f"{row}\n" in version.description, row
    assert "md5 of run/000" not in version.description
    store.connect(here).delete_registered_model("toy")
    run.register()
    assert run.versions()[0].description == version.description


def test_parameters_of_other_code_are_not_recorded(here: Path) -> None:
    outs = [{"path": "run/004/adapter", "md5": "x"}]
    entry = {"cmd": "x", "deps": [], "outs": outs, "params": {"params.yaml": {"update": {"knob_of_old": 1}}}}
    (here / "dvc.lock").write_text(yaml.safe_dump({"stages": {"update@004": entry}}))
    found = card.recorded(here, here / "run/004/adapter")
    assert found == card.Recorded(None, 1, {})
    assert card.recorded(here, here / "run/005/adapter") == card.Recorded()


def test_twice_is_one_version_and_the_same_receipt(here: Path) -> None:
    run = Run(here)
    assert run.register() == run.register()
    assert len(run.versions()) == 1
    models = store.connect(here).search_logged_models([store.experiment(store.connect(here), here, "toy")])
    assert len(models) == 1


@pytest.mark.parametrize("success", [0.45, 0.30])
def test_one_that_is_not_better_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, success: float) -> None:
    monkeypatch.chdir(tmp_path)
    receipt = Run(tmp_path, success).register()
    assert receipt["registered"] is False
    assert receipt["reason"] == f"test success {success:.3f} is not above the base policy's 0.450 (240 scenarios)"
    assert not (tmp_path / ".flywheel").exists(), "nothing is asked of MLflow"


def test_a_later_one_challenges_the_champion(here: Path) -> None:
    run = Run(here)
    run.register()
    store.connect(here).set_registered_model_alias("toy", "champion", "1")
    adapter, evaluation = run.trained("007", 0.9)
    run.register(adapter=adapter, evaluation=evaluation)
    assert [version.version for version in run.versions()] == [1, 2]
    assert run.aliases() == {"challenger": "2", "champion": "1"}
    run.register()
    assert (len(run.versions()), run.aliases()["challenger"]) == (2, "1")


def test_a_lost_store_is_filled_again(here: Path, empty_store: Path) -> None:
    """DVC has the receipt and runs nothing: whoever misses the version calls `publish`."""
    run = Run(here)
    for _ in range(2):
        params = RegisterParams.model_validate(PARAMS)
        assert publish.publish(here, run.adapter, run.evaluation, run.base, params) == "1"
    assert len(run.versions()) == 1


def test_what_was_interrupted_is_not_registered(here: Path) -> None:
    run = Run(here)
    client = store.connect(here)
    tags = {"adapter_hash": adapter_hash(run.adapter)}
    half = client.create_logged_model(store.experiment(client, here, "toy"), "half", tags=tags)
    run.register()
    (version,) = run.versions()
    assert version.source != f"models:/{half.model_id}"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("adapter", r"is of adapter \w+, and .*other is \w+: evaluate it again"),
        ("split", "is of the split val: what is registered is judged on the test split"),
        ("n", "240 scenarios and .* has 8: only the same can be compared"),
    ],
)
def test_what_does_not_fit_is_one_sentence(here: Path, what: str, says: str) -> None:
    run = Run(here)
    changed: dict[str, Any] = {}
    if what == "adapter":
        changed["adapter"] = make_adapter(here / "other", b"others")
    elif what == "split":
        changed["evaluation"] = make_evaluation(here / "other", 0.9, run.adapter, split="val")
    else:
        changed["base_evaluation"] = make_evaluation(here / "other", 0.4, here / "run/000/adapter", n=8)
    with pytest.raises(UserError, match=says):
        run.register(**changed)
    assert not (here / "receipt.json").exists()


def test_lineage_is_what_it_comes_from_and_nothing_else(here: Path) -> None:
    def entry(reads: str, writes: str, code: str = "c") -> dict[str, Any]:
        deps = [{"path": path, "md5": path} for path in [*reads.split(), f"steps/{code}.py"]]
        return {"cmd": "…", "deps": deps, "outs": [{"path": path, "md5": path} for path in writes.split()]}

    def tag(**changed: Any) -> dict[str, str]:
        (here / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages | changed}))
        return lock.lineage(here, here / "run/002/adapter", Path("run/002/test"))

    stages = {
        "code": entry("environments", "run/code"),
        "scenarios": entry("run/code/scenarios.json", "run/scenarios"),
        "update@002": entry("run/scenarios", "run/002/adapter"),
        "test@best": entry("run/002/adapter run/scenarios", "run/002/test"),
        "update@003": entry("run/002/adapter", "run/003/adapter"),
    }
    before = tag()
    assert before["dvc_lock"]
    assert tag(**{"update@003": entry("run/002/adapter", "run/003/adapter", "d")}) == before
    assert tag(code=entry("environments/new.py", "run/code")) == before, "another task's code"
    assert tag(scenarios=entry("run/code/scenarios.json", "run/scenarios", "d")) != before
    assert tag(**{"test@best": entry("run/002/adapter", "run/002/test")}) != before
    (here / "dvc.lock").unlink()
    assert lock.lineage(here, Path("run/002/adapter")) == {}


@pytest.mark.nightly
def test_as_a_command(here: Path) -> None:
    Run(here)
    (here / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    words = (
        "--adapter run/004/adapter --evaluation run/004/test --base-evaluation run/000/test --receipt run/receipt.json"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, "-m", "steps.register", *words.split()],
        cwd=here,
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("registered: toy version 1, because test success 0.850 is above")
    assert json.loads((here / "run/receipt.json").read_text())["registered"] is True


def test_a_password_is_not_shown() -> None:
    assert store.hidden("https://anna:secret@mlflow.example/a") == "https://…@mlflow.example/a"
    assert store.hidden("sqlite:////a/b@c.db") == "sqlite:////a/b@c.db"


def judged_evaluation(run: Run, number: str, share: float, low: float, rival: str | None = None) -> tuple[Path, Path]:
    """An adapter, and its evaluation by a judge against the base policy."""
    adapter, folder = run.trained(number, 0.5)
    known = Evaluation.model_validate_json((folder / "summary.json").read_text())
    base = Evaluation.model_validate_json((run.base / "summary.json").read_text())
    counts = {"wins": 0, "ties": 0, "losses": 0, "disagreements": 0, "unjudged": 0}
    judged = Judged(
        rival="base policy", rival_hash=rival or base.adapter_hash, judge="j", share=share, ci95=(low, share), **counts
    )
    none = {"success": None, "ci95": None, "reward": None}
    (folder / "summary.json").write_text(known.model_copy(update=none | {"judged": judged}).text())
    itself = judged.model_copy(update={"share": 0.5, "ci95": (0.5, 0.5), "rival_hash": base.adapter_hash})
    (run.base / "summary.json").write_text(base.model_copy(update=none | {"judged": itself}).text())
    return adapter, folder


def test_what_a_judge_prefers_is_registered_where_its_interval_says_so(here: Path) -> None:
    run = Run(here)
    adapter, evaluation = judged_evaluation(run, "005", 0.6, 0.5)
    refused = run.register(adapter=adapter, evaluation=evaluation)
    assert refused["registered"] is False
    assert refused["reason"] == (
        "on test judged better than the base policy on 0.600 [0.500, 0.600] of 240 scenarios, taken as independent; the "
        "lower end is not above 0.5"
    )
    adapter, evaluation = judged_evaluation(run, "006", 0.6, 0.52)
    receipt = run.register(adapter=adapter, evaluation=evaluation)
    assert receipt["registered"] is True
    assert receipt["trained"]["judged"]["share"] == 0.6
    [version] = run.versions()
    assert version.tags["test_judged_share"] == "0.6"
    assert "test_success" not in version.tags
    adapter, evaluation = judged_evaluation(run, "007", 0.6, 0.52, rival="another")
    with pytest.raises(UserError, match="compared the adapter with another, and not with the base policy"):
        run.register(adapter=adapter, evaluation=evaluation)
    with pytest.raises(UserError, match="one of the two evaluations has rewards by a rule"):
        run.register()
