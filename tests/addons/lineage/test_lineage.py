"""Lineage, of a run made by hand: both directions by hand, on SQLite and on a real PostgreSQL, with a real registry."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from addons.lineage import entries, index, questions, reader, tables
from addons.lineage.__main__ import main
from addons.models.replies import Replies
from environments.base import Scenario
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation
from steps.core.records import Judgement, Order, Probe, Reward, Trajectory, read_records, write_records
from steps.policy.adapter import adapter_hash
from steps.project import lock as project_lock
from steps.project import store
from steps.project.ledger import Ledger
from steps.registry import decisions, gate
from steps.registry.decisions import Decision
from steps.registry.gate import Verdict
from steps.registry.model import Version
from tests.conftest import new_database
from tests.project.test_ledger import row as reply_row
from tests.tracking import test_tracking

ROOT = Path(questions.__file__).parent.parent.parent
DRAWN = {"001": ("s1", "s2"), "002": ("s2", "s3")}  # iteration -> scenarios, two attempts each
CODE = {"environments": "e" * 32 + ".dir", "steps/judging/rule.py": "f" * 32}


def scenario(name: str, split: Any = "train") -> Scenario:
    return Scenario(id=name, task="toy", split=split, messages=({"role": "user", "content": name},), data={})


def played(number: str, name: str, attempt: int, adapter: str) -> Trajectory:
    common: dict[str, Any] = {"adapter_hash": adapter, "turns": (), "stop_reason": "done"}
    return Trajectory(id=f"{number}-{name}-{attempt}", scenario_id=name, attempt=attempt, **common)


class Run:
    """A finished run of two iterations. RULER (judge J) only looks on in the first; it counts with the rule in the other."""

    def __init__(self, root: Path, seed: int = 3) -> None:
        self.root, self.seed = root, seed
        (root / "run/scenarios").mkdir(parents=True)
        write_records([scenario(name) for name in ("s1", "s2", "s3", "s4")], root / "run/scenarios/train.parquet")
        write_records([scenario("v1", "val")], root / "run/scenarios/val.parquet")
        write_records([scenario("t1", "test")], root / "run/scenarios/test.parquet")
        self.adapters = [self.adapter("000")]
        for number, names in DRAWN.items():
            self.iteration(number, names)
        for number in ("000", "001", "002"):
            self.evaluation(number, "evaluation", "val", "v1")
        for number in ("000", "002"):
            self.evaluation(number, "test", "test", "t1")
        receipt = {"name": "toy", "adapter_hash": self.adapters[2], "registered": True, "reason": "it is better"}
        (root / "run/receipt.json").write_text(json.dumps(receipt))
        self.write()

    def adapter(self, number: str, steps: int | None = None) -> str:
        folder = self.root / "run" / number
        (folder / "adapter").mkdir(parents=True)
        (folder / "adapter/adapter_config.json").write_text("{}")
        (folder / "adapter/adapter_model.safetensors").write_bytes(f"{number} {self.seed}".encode())
        name = adapter_hash(folder / "adapter")
        (folder / "checkpoint").mkdir()
        (folder / "checkpoint/state.json").write_text(
            json.dumps({"adapter": name, "steps": 8 * int(number) if steps is None else steps})
        )
        return name

    def iteration(self, number: str, names: Sequence[str]) -> None:
        folder, before = self.root / "run" / number, self.adapters[-1]
        self.adapters.append(self.adapter(number))
        batch = [played(number, name, attempt, before) for name in names for attempt in (0, 1)]
        write_records(batch, folder / "trajectories.parquet")
        by = "rule" if number == "001" else "rule+ruler"
        scores = {trajectory.id: float(trajectory.attempt) for trajectory in batch}
        write_records(
            [
                Reward(trajectory_id=name, scenario_id=trajectory.scenario_id, name=by, score=score, success=False)
                for trajectory, (name, score) in zip(batch, scores.items(), strict=True)
            ],
            folder / "rewards.parquet",
        )
        judgements = []
        for name in names:
            attempts = tuple(trajectory.id for trajectory in batch if trajectory.scenario_id == name)
            order = Order(attempts=attempts, scores=(0.0, 1.0), calls=(f"call {self.seed} {number} {name}",))
            probe = Probe(retest=0.0, canary_gain=None, calls=(f"probe {self.seed} {number} {name}",))
            own = {attempt: scores[attempt] for attempt in attempts}
            judgements.append(Judgement(scenario_id=name, judge="J", scores=own, orders=(order,), probe=probe))
        (folder / "judgements.jsonl").write_text(
            "".join(judgement.model_dump_json() + "\n" for judgement in judgements)
        )
        (folder / "metrics.json").write_text(
            json.dumps({"loss": 0.5, "kl": float("nan"), "of": f"{self.seed} {number}"})
        )

    def evaluation(self, number: str, folder: str, split: str, name: str) -> None:
        path, adapter = self.root / "run" / number / folder, self.adapters[int(number)]
        path.mkdir()
        numbers: dict[str, Any] = {"reward": 0.5, "turns": 3.0, "tokens": 40.0, "ci95": (0.1, 0.9)}
        summary = Evaluation(split=split, adapter_hash=adapter, n=1, success=int(number) / 4, **numbers)
        (path / "summary.json").write_text(summary.model_dump_json())
        write_records([played(split, name, 0, adapter)], path / "trajectories.parquet")

    def md5(self, path: str) -> str:
        full = self.root / path
        return project_lock.folder_md5(full) if full.is_dir() else project_lock.file_md5(full)

    def write(self) -> None:
        """chain.yaml and dvc.lock of what is there."""
        numbers = ["000", *DRAWN]
        chain = {"iterations": {n: {"prev": p} for p, n in pairwise(numbers)}, "evaluated": numbers}
        (self.root / "chain.yaml").write_text(yaml.safe_dump(chain | {"tested": {"base": "000", "best": "002"}}))
        self.stages: dict[str, Any] = {}
        self.stage("scenarios", [], ["run/scenarios"])
        self.stage("initialise", [], ["run/000/adapter", "run/000/checkpoint"])
        for p, n in pairwise(numbers):
            batch, rewards = f"run/{n}/trajectories.parquet", f"run/{n}/rewards.parquet"
            self.stage(f"rollout@{n}", ["run/scenarios", f"run/{p}/adapter"], [batch])
            self.stage(f"score@{n}", ["run/scenarios", batch], [rewards, f"run/{n}/judgements.jsonl"])
            outputs = [f"run/{n}/adapter", f"run/{n}/checkpoint", f"run/{n}/metrics.json"]
            self.stage(f"update@{n}", [batch, rewards, f"run/{p}/checkpoint"], outputs)
        for n in numbers:
            self.stage(f"evaluate@{n}", [f"run/{n}/adapter", "run/scenarios"], [f"run/{n}/evaluation"])
        for key, n in (("base", "000"), ("best", "002")):
            self.stage(f"test@{key}", [f"run/{n}/adapter", "run/scenarios"], [f"run/{n}/test"])
        self.stage("register", ["run/002/adapter"], ["run/receipt.json"])
        self.lock()

    def stage(self, name: str, reads: list[str], writes: list[str]) -> None:
        files = [[{"path": path, "md5": self.md5(path)} for path in paths] for paths in (reads, writes)]
        code = [{"path": path, "md5": md5} for path, md5 in CODE.items()]
        params = {"params.yaml": {"task": "toy", "seed": self.seed}}
        self.stages[name] = {"cmd": f"run {name}", "deps": [*files[0], *code], "params": params, "outs": files[1]}

    def lock(self) -> None:
        (self.root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": self.stages}, sort_keys=False))

    def batch(self, number: str) -> str:
        return self.md5(f"run/{number}/trajectories.parquet")


@pytest.fixture(scope="module")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger without a row, to copy."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    with Ledger(f"sqlite:///{path}"):
        return path


@pytest.fixture(scope="module")
def empty_postgresql(postgresql_server: str) -> str:
    """The name of a database with such a ledger."""
    url = new_database(postgresql_server)
    with Ledger(url) as opened:
        return str(opened.engine.url.database)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, empty_sqlite: Path) -> Iterator[Replies]:
    if request.param == "postgresql":
        server, template = request.getfixturevalue("postgresql_server"), request.getfixturevalue("empty_postgresql")
        url = new_database(server, template)
    else:
        url = f"sqlite:///{shutil.copy(empty_sqlite, tmp_path / 'ledger.db')}"
    with Replies(url) as opened:
        yield opened


@pytest.fixture
def sqlite(tmp_path: Path, empty_sqlite: Path) -> Iterator[Ledger]:
    shutil.copy(empty_sqlite, tmp_path / "ledger.db")
    with Ledger(f"sqlite:///{tmp_path}/ledger.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_other_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    yield
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        os.environ.pop(name)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run to copy: writing one takes a while."""
    return Run(tmp_path_factory.mktemp("finished") / "a project")


@pytest.fixture
def project(tmp_path: Path, finished: Run) -> Run:
    copied = copy.deepcopy(finished)
    copied.root = Path(shutil.copytree(finished.root, tmp_path / "a project"))
    return copied


def dump(ledger: Ledger) -> tuple[list[Any], list[Any]]:
    with ledger.engine.connect() as link:
        nodes = [(*row[:-1], json.dumps(row[-1])) for row in link.execute(sa.select(tables.NODES))]
        edges = [(*row[:-1], json.dumps(row[-1])) for row in link.execute(sa.select(tables.EDGES))]
    return sorted(nodes), sorted(edges)


def trained(answer: questions.Impact) -> dict[str, str]:
    return {touched.adapter: touched.how for touched in answer.trained}


def evaluated(answer: questions.Impact) -> list[str]:
    return [touched.adapter for touched in answer.evaluated]


def test_back_to_the_first_adapter(project: Run, ledger: Ledger) -> None:
    done = index.index(project.root, ledger)
    assert done.left_out == []
    answer = questions.back(project.adapters[2], ledger, project.root)
    assert [each.adapter for each in answer.steps] == project.adapters[::-1]
    last, middle, first = answer.steps
    assert (last.parents, middle.parents, first.parents) == ([project.adapters[1]], [project.adapters[0]], [])
    assert (last.batches, middle.batches, first.batches) == ([project.batch("002")], [project.batch("001")], [])
    begin = project.batch("002")[: project_lock.SHORT]
    assert last.trajectories == [f"{begin}/002-{name}" for name in ("s2-0", "s2-1", "s3-0", "s3-1")]
    assert (last.scenarios, middle.scenarios, first.scenarios) == (["s2", "s3"], ["s1", "s2"], [])
    assert last.rewards == [f"{begin}/{project.md5('run/002/rewards.parquet')}"]
    rule = entries.code_judge("rule", project.stages["score@002"])
    assert rule.startswith("rule-")
    assert (last.judges, middle.judges) == (["J", rule], [rule]), "in the first batch the model only looked on"
    assert (last.replies, middle.replies) == (["call 3 002 s2", "call 3 002 s3"], [])
    assert len(last.judgements) == 2
    assert last.metrics == [{"md5": project.md5("run/002/metrics.json"), "loss": 0.5, "kl": "nan", "of": "3 002"}]
    assert sorted((each["split"], each["success"], each["n"], each["ci95"]) for each in last.evaluations) == [
        ("test", 0.5, 1, [0.1, 0.9]),
        ("val", 0.5, 1, [0.1, 0.9]),
    ]
    assert {each["md5"] for each in last.evaluations} == {
        project.md5("run/002/test"),
        project.md5("run/002/evaluation"),
    }
    assert [each["split"] for each in middle.evaluations] == ["val"]

    (key, about), (run,) = next(iter(answer.runs.items())), last.runs
    assert (run["run"], run["iteration"], run["md5"]) == (key, "002", project.md5("run/002/adapter"))
    assert run["dvc_lock"] == project_lock.lineage(project.root, project.root / "run/002/adapter")["dvc_lock"]
    assert (about["task"], about["seed"], about["git_commit"]) == ("toy", 3, None)
    assert questions.back(project.adapters[2][:9], ledger, project.root).steps == answer.steps, (
        "an abbreviation will do"
    )
    assert len(questions.back(project.adapters[1], ledger, project.root).steps) == 2, "nothing of what came later"


def test_forward_to_all_that_must_be_trained_again(project: Run, ledger: Ledger) -> None:
    index.index(project.root, ledger)
    base, first, second = project.adapters
    rule = entries.code_judge("rule", project.stages["score@001"])
    inherited = {first: "directly", second: "through an ancestor"}
    both, last = {first: "directly", second: "directly"}, {second: "directly"}
    judgement = f"{project.md5('run/002/judgements.jsonl')[: project_lock.SHORT]}/s3"
    expected: dict[tuple[str, str], dict[str, str]] = {
        ("scenario", "s1"): inherited,
        ("scenario", "s2"): both,
        ("scenario", "s3"): last,
        ("scenario", "s4"): {},
        ("trajectory", "001-s1-0"): inherited,
        ("trajectory", "002-s2-1"): last,
        ("batch", project.batch("001")): inherited,
        ("batch", project.batch("002")[:8]): last,
        ("rewards", project.md5("run/001/rewards.parquet")): inherited,
        ("judge", "J"): last,
        ("judge", rule): both,
        ("judge", "rule"): both,
        ("judgement", judgement): last,
        ("reply", "call 3 002 s2"): last,
        ("reply", "call 3 001 s2"): {},  # of a judge without weight
        ("reply", "probe 3 002 s2"): {},  # a test of the judge
        ("adapter", base): {base: "directly", first: "through an ancestor", second: "through an ancestor"},
        ("adapter", second): last,
        ("metrics", project.md5("run/001/metrics.json")): {},
    }
    for (kind, name), answer in expected.items():
        impact = questions.forward(kind, name, ledger, project.root)
        assert (trained(impact), evaluated(impact), impact.unlinked) == (answer, [], []), (kind, name)
    only = questions.forward("scenario", "v1", ledger, project.root)
    assert (trained(only), evaluated(only)) == ({}, project.adapters)
    assert [run["iteration"] for touched in only.evaluated for run in touched.runs] == ["000", "001", "002"]
    assert evaluated(questions.forward("scenario", "t1", ledger, project.root)) == [base, second]


def test_again_changes_no_row_and_another_run_adds_its_own(project: Run, ledger: Ledger, tmp_path: Path) -> None:
    first = index.index(project.root, ledger)
    rows = dump(ledger)
    assert (first.nodes, first.edges) == (len(rows[0]), len(rows[1]))
    assert tables.counts(ledger) == {
        "adapter": 3,
        "batch": 2,
        "evaluation": 5,
        "judge": 2,
        "judgement": 4,
        "metrics": 2,
        "receipt": 1,
        "rewards": 2,
        "run": 1,
        "scenario": 6,
        "trajectory": 8,
        "edges": len(rows[1]),
    }
    assert index.index(project.root, ledger) == (0, 0, [])
    assert index.index(project.root, ledger, ["002"]) == (0, 0, [])
    assert dump(ledger) == rows

    other = Run(tmp_path / "other", seed=4)
    added = index.index(other.root, ledger)
    assert added.nodes == first.nodes - 6 - 2, "scenarios and judges are the same, and are shared"
    assert set(dump(ledger)[0]) > set(rows[0])
    assert set(dump(ledger)[1]) > set(rows[1])
    assert project.md5("run/001/rewards.parquet") == other.md5("run/001/rewards.parquet"), "of two batches all the same"
    assert trained(questions.forward("batch", project.batch("001"), ledger, project.root)).keys() == {
        *project.adapters[1:]
    }
    answer = questions.forward("scenario", "s1", ledger, project.root)
    assert trained(answer).keys() == {*project.adapters[1:], *other.adapters[1:]}
    assert len({run["run"] for touched in answer.trained for run in touched.runs}) == 2
    assert len(questions.back(other.adapters[2], ledger, project.root).runs) == 1
    with pytest.raises(UserError, match=r"trajectory 001-s1-0 is one of several: .{12}/001-s1-0, .{12}/001-s1-0"):
        questions.forward("trajectory", "001-s1-0", ledger, project.root)


def test_an_iteration_at_a_time_is_the_same_as_all_at_once(project: Run, ledger: Ledger, tmp_path: Path) -> None:
    for number in (["000"], ["001"], ["002"]):
        index.index(project.root, ledger, number)
    with Ledger(f"sqlite:///{tmp_path}/another.db") as another:
        index.index(project.root, another)
        assert dump(ledger) == dump(another), "on PostgreSQL as on SQLite"
    with pytest.raises(UserError, match=r"chain.yaml has no iteration 007; it has 000, 001, 002"):
        index.index(project.root, ledger, ["007"])


def test_a_rebuild_changes_nothing_and_leaves_replies_alone(project: Run, ledger: Replies, tmp_path: Path) -> None:
    key = f"kept {ledger.engine.dialect.name}"
    ledger.put(reply_row(key, "an answer"))
    git(project.root, "init", "--quiet")
    git(project.root, "commit", "--quiet", "--allow-empty", "--message", "one")
    commit = git(project.root, "rev-parse", "HEAD")
    index.index(project.root, ledger)
    rows, stored = dump(ledger), ledger.get(key)
    git(project.root, "commit", "--quiet", "--allow-empty", "--message", "two")
    for _ in range(2):
        done, lost = index.rebuild([project.root], ledger)
        assert (done.nodes, done.edges, lost) == (len(rows[0]), len(rows[1]), {})
        assert dump(ledger) == rows
    (about,) = questions.back(project.adapters[0], ledger, project.root).runs.values()
    assert about["git_commit"] == commit, "the one of the first indexing"
    assert ledger.get(key) == stored

    other = Run(tmp_path / "other", seed=4)
    index.index(other.root, ledger)
    both = dump(ledger)
    assert index.rebuild([project.root, other.root], ledger)[1] == {}
    assert dump(ledger) == both
    _, lost = index.rebuild([other.root], ledger)
    assert [run["git_commit"] for run in lost.values()] == [commit]
    with pytest.raises(UserError, match="knows no adapter"):
        questions.back(project.adapters[2], ledger, project.root)


def decide(project: Run, **changed: Any) -> Verdict:
    """run/promote/<the last adapter>: its verdict against the one before as champion, as flows/promote.py leaves it."""
    base, champion, challenger = project.adapters

    def side(adapter: str, success: float) -> dict[str, Any]:
        return {"adapter_hash": adapter, "success": success, "ci95": (0, 1), "turns": 3, "tokens": 40, "errors": 0}

    sides = {"challenger": side(challenger, 1), "champion": side(champion, 0), "base": side(base, 0)}
    given = {"promoted": True, "reason": "better", "against": "champion", "n": 1, "scenarios": "x", "checks": ()}
    given |= {
        "slices": (),
        "wins": ("t1",),
        "losses": (),
        "parameters": {},
        "sides": sides | {"scripted": side("scripted", 0)},
    }
    verdict = Verdict.model_validate(given | changed)
    folder = project.root / "run/promote" / challenger
    paths = {"challenger": "run/002/test", "base": "run/000/test"}
    for name, adapter in (("champion", champion), ("scripted", "scripted")):
        path = folder / name
        path.mkdir(parents=True)
        numbers: dict[str, Any] = {"reward": 0.5, "turns": 3.0, "tokens": 40.0, "ci95": (0.1, 0.9)}
        summary = Evaluation(split="test", adapter_hash=adapter, n=1, success=0, **numbers)
        (path / "summary.json").write_text(summary.model_dump_json())
        write_records([played("test", "t1", 0, adapter)], path / "trajectories.parquet")
        paths[name] = path.relative_to(project.root).as_posix()
    (folder / "verdict.json").write_text(verdict.text())
    evaluations = {side: {"path": path, "md5": project.md5(path)} for side, path in paths.items()}
    (folder / "evaluations.json").write_text(json.dumps(evaluations))
    return verdict


def decision(project: Run, verdict: Verdict, event: str = "promotion", why: str = "better") -> Decision:
    return Decision(event, "toy", "2", project.adapters[2], "1", project.adapters[1], why, verdict.hash)


def test_a_verdict_rests_on_evaluations_and_judges_adapters(project: Run, ledger: Ledger) -> None:
    verdict = decide(project)
    index.index(project.root, ledger)
    _, edges = dump(ledger)
    ends = {(*row[:3], json.loads(row[5])["side"]) for row in edges if row[3:5] == ("verdict", verdict.hash)}
    folder = f"run/promote/{project.adapters[2]}"
    assert ends == {
        ("adapter", project.adapters[2], "challenged", "challenger"),
        ("adapter", project.adapters[1], "opposed", "champion"),
        ("adapter", project.adapters[0], "opposed", "base"),
        ("evaluation", project.md5("run/002/test"), "weighed", "challenger"),
        ("evaluation", project.md5("run/000/test"), "weighed", "base"),
        ("evaluation", project.md5(f"{folder}/champion"), "weighed", "champion"),
        ("evaluation", project.md5(f"{folder}/scripted"), "weighed", "scripted"),
    }
    assert not any("scripted" in row[:5] for row in edges), "it is no adapter"
    answer = questions.forward("scenario", "t1", ledger, project.root)
    assert [item["verdict"] for item in answer.verdicts] == [verdict.hash]
    assert evaluated(answer) == [project.adapters[0], project.adapters[1], project.adapters[2]]
    assert [item["verdict"] for item in questions.forward("scenario", "s1", ledger, project.root).verdicts] == [
        verdict.hash
    ]
    assert questions.forward("scenario", "v1", ledger, project.root).verdicts == []
    (back,) = questions.back(project.adapters[2], ledger, project.root).verdicts
    assert (back["as"], back["wins"], back["promoted"]) == ("challenger", ["t1"], True)
    assert questions.back(project.adapters[1], ledger, project.root).verdicts[0]["as"] == "champion"
    assert questions.forward("verdict", verdict.hash, ledger, project.root).trained == []


def test_a_rebuild_keeps_decisions_and_their_verdicts(project: Run, ledger: Ledger) -> None:
    """The folder of the verdict is gone by then; a dry run's verdict, which decided nothing, goes with its folder."""
    verdict = decide(project)
    folder = project.root / "run/promote" / project.adapters[2]
    index.index(project.root, ledger)
    evidence = gate.evidence(folder, folder.name)
    given = decision(project, verdict)
    assert decisions.record(ledger, given, evidence)
    assert not decisions.record(ledger, given, evidence), "the same again"
    back = Decision("rollback", "toy", "1", project.adapters[1], "2", project.adapters[2], "slow", None)
    assert decisions.record(ledger, back)
    assert decisions.record(ledger, given, evidence), "promoted again, after it was taken back"
    other = dataclasses.replace(given, model="another")
    assert decisions.record(ledger, other, evidence)
    with ledger.engine.connect() as link:
        before = decisions.listed(link)
    assert [(item.event, item.model) for item in before] == [
        ("promotion", "toy"),
        ("rollback", "toy"),
        ("promotion", "toy"),
        ("promotion", "another"),
    ]
    assert all(item.created.endswith("+00:00") for item in before)
    rows = dump(ledger)
    index.rebuild([project.root], ledger)
    assert dump(ledger) == rows

    shutil.rmtree(project.root / "run/promote")
    index.rebuild([project.root], ledger)
    again = questions.back(project.adapters[2], ledger, project.root)
    assert [item["verdict"] for item in again.verdicts] == [verdict.hash]
    assert again.verdicts[0]["wins"] == ["t1"]
    assert again.decisions == before
    dry = decide(project, reason="a dry run")
    index.index(project.root, ledger)
    assert len(questions.back(project.adapters[2], ledger, project.root).verdicts) == 2
    shutil.rmtree(project.root / "run/promote")
    index.rebuild([project.root], ledger)
    assert dry.hash not in {
        item["verdict"] for item in questions.back(project.adapters[2], ledger, project.root).verdicts
    }


def test_a_verdict_that_cannot_be_read_is_one_sentence(project: Run, sqlite: Ledger) -> None:
    decide(project)
    folder = project.root / "run/promote" / project.adapters[2]
    (folder / "evaluations.json").unlink()
    done = index.index(project.root, sqlite)
    sentence = (
        f"run/promote/{project.adapters[2]}/evaluations.json is missing: the verdict is not linked to its evaluations"
    )
    assert done.left_out == [sentence]
    (folder / "evaluations.json").write_text("[]")
    with pytest.raises(UserError, match=r"run/promote/\w+ holds no verdict"):
        index.index(project.root, sqlite)
    (folder / "evaluations.json").unlink()
    (folder / "verdict.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"run/promote/\w+ holds no verdict .*; `.venv/bin/python -m flows.promote --dry-run`"
    ):
        index.index(project.root, sqlite)


def git(root: Path, *words: str) -> str:
    name = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    done = subprocess.run(["git", *name, *words], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("path", "said", "steps"),
    [
        ("run/002/rewards.parquet", ["run/002/rewards.parquet is missing"], 1),
        ("run/002/trajectories.parquet", ["run/002/trajectories.parquet is missing"], 1),
        ("run/002/judgements.jsonl", ["run/002/judgements.jsonl is missing"], 3),
        ("run/002/metrics.json", ["run/002/metrics.json is missing"], 3),
        ("run/001/evaluation", ["run/001/evaluation is missing"], 3),
        ("run/000/adapter", ["run/000/adapter is missing"], 3),
        ("run/scenarios", ["run/scenarios is missing"], 3),
        ("run/receipt.json", ["run/receipt.json is missing"], 3),
        (
            "dvc.lock",
            ["dvc.lock has no whole first iteration", "dvc.lock has no score@001", "dvc.lock has no update@001"],
            1,
        ),
    ],
)
def test_what_is_missing_is_listed(project: Run, sqlite: Ledger, path: str, said: list[str], steps: int) -> None:
    lost = project.root / path
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    done = index.index(project.root, sqlite)
    assert [text for text in said if not any(line.startswith(text) for line in done.left_out)] == []
    assert len(done.left_out) == (5 if path == "dvc.lock" else 1), done.left_out
    answer = questions.back(project.adapters[2], sqlite, project.root)
    assert len(answer.steps) == steps
    whole = steps == 3 and path != "run/000/adapter"
    assert answer.unlinked == ([] if whole else [answer.steps[-1].adapter]), "an answer that is not whole says so"


def test_what_is_not_what_dvc_recorded_is_not_linked(project: Run, sqlite: Ledger) -> None:
    """A link rests on dvc.lock, on the files, and on what they say of each other."""
    first, second = project.adapters[1:]
    (project.root / "run/002/adapter/adapter_model.safetensors").write_bytes(b"another")
    (project.root / "run/009").mkdir()
    done = index.index(project.root, sqlite)
    recorded = "is not what dvc.lock recorded (`.venv/bin/dvc repro` or `.venv/bin/dvc checkout` repairs it)"
    assert done.left_out == [f"run/002/adapter {recorded}", "run/009 is not in chain.yaml"]
    answer = questions.forward("scenario", "s3", sqlite, project.root)
    assert (trained(answer), answer.unlinked) == ({}, [second]), "it was evaluated, that is all that is known"
    project.stage("update@002", [dep["path"] for dep in project.stages["update@002"]["deps"][:3]], ["run/002/adapter"])
    project.lock()
    another = adapter_hash(project.root / "run/002/adapter")
    assert f"run/002/adapter is {another}, but run/002/checkpoint is of adapter {second}" in str(
        index.index(project.root, sqlite)
    )

    project.stages["update@001"]["deps"][0]["md5"] = "0" * 32
    project.lock()
    unlinked = "run/001/trajectories.parquet changed after update@001: run/001/adapter is not linked to its batch"
    with Ledger("sqlite://") as fresh:
        assert unlinked in str(index.index(project.root, fresh))
        assert trained(questions.forward("batch", project.batch("001"), fresh, project.root)) == {}

    project.write()
    (project.root / "run/000/checkpoint/state.json").write_text('{"adapter": "stale"}')
    with Ledger("sqlite://") as fresh:
        left = index.index(project.root, fresh).left_out
    assert any(text.startswith(f"batch 001 is of {project.adapters[0]}, run/000/checkpoint of stale") for text in left)
    assert first != second


def test_a_judge_that_is_code_needs_its_code_in_the_lock() -> None:
    """Where that is recorded before and after the move into rooms; a judge without code has no identity."""
    entry = {"deps": [{"path": path, "md5": md5} for path, md5 in CODE.items()]}
    identity = entries.code_judge("rule", entry)
    moved = {"deps": [dep | {"path": dep["path"].replace("judging/", "")} for dep in entry["deps"]]}
    assert entries.code_judge("rule", moved) == identity
    listed = {
        "deps": [dep | {"path": dep["path"].replace("environments", "run/task_code.json")} for dep in entry["deps"]]
    }
    assert entries.code_judge("rule", listed) == identity, "newer locks have the task's own code"
    newest = {"deps": [{"path": "run/code/score.json", "md5": "1" * 32}]}
    assert entries.code_judge("rule", newest) != entries.code_judge("ruler", newest)
    assert entries.code_judge("rule", newest) != identity
    entry["deps"][1]["md5"] = "0" * 32
    assert entries.code_judge("rule", entry) != identity
    with pytest.raises(UserError, match=r"no code of the judge rule \(run/code/score\.json under the deps of score\)"):
        entries.code_judge("rule", {"deps": entry["deps"][:1]})


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("run/001/trajectories.parquet", b"PAR1 not really", "run/001/trajectories.parquet cannot be read .Parquet"),
        (
            "run/001/rewards.parquet",
            None,
            "run/001/rewards.parquet cannot be read .it has no column name, score, success, tr",
        ),
        ("run/001/judgements.jsonl", b'{"scenario_id": 1}\n', "run/001/judgements.jsonl, line 1 holds no judgement"),
        ("run/001/metrics.json", b"[1]", "run/001/metrics.json holds no JSON object .it is list"),
        ("run/002/test/summary.json", b"{}", "run/002/test/summary.json holds no evaluation .no 'adapter_hash'"),
        ("run/001/checkpoint/state.json", b"{", "run/001/checkpoint/state.json holds no JSON "),
    ],
)
def test_a_broken_file_is_named_and_nothing_is_written(
    project: Run, ledger: Ledger, path: str, content: bytes | None, reason: str
) -> None:
    index.index(project.root, ledger)
    rows = dump(ledger)
    if content is None:
        shutil.copy(project.root / "run/scenarios/val.parquet", project.root / path)
    else:
        (project.root / path).write_bytes(content)
    project.write()  # recorded so: broken from the start
    for change in (lambda: index.index(project.root, ledger), lambda: index.rebuild([project.root], ledger)):
        with pytest.raises(UserError, match=reason):
            change()
        assert dump(ledger) == rows


def test_md5_of_a_folder_is_dvcs() -> None:
    """Of the folder that git holds, and DVC's own lock file records."""
    (recorded,) = project_lock.read_lock(ROOT)["embedded_policy"]["outs"]
    assert project_lock.folder_md5(ROOT / recorded["path"]) == recorded["md5"]


def add_store(root: Path, empty_store: Path) -> None:
    (root / ".flywheel").mkdir()
    shutil.copy(empty_store, root / ".flywheel/mlflow.db")


def test_versions_and_aliases_are_the_registrys(project: Run, sqlite: Ledger, empty_store: Path) -> None:
    add_store(project.root, empty_store)
    index.index(project.root, sqlite)
    client = store.connect(project.root)
    client.create_registered_model("toy")
    for adapter in (*project.adapters[1:], "0123456789abcdef"):
        client.create_model_version("toy", project.root.as_uri(), tags={"adapter_hash": adapter})
    client.create_model_version("toy", project.root.as_uri())
    client.set_registered_model_alias("toy", "champion", "2")
    two = Version("toy", "2", ["champion"], project.adapters[2])
    for model in ("models:/toy@champion", "models:/toy/2"):
        answer = questions.back(model, sqlite, project.root)
        assert (answer.adapter, answer.versions, len(answer.steps)) == (project.adapters[2], [two], 3)
    assert questions.forward("scenario", "s4", sqlite, project.root).unlinked == ["0123456789abcdef"], (
        "a version from elsewhere"
    )
    one = Version("toy", "1", [], project.adapters[1])
    assert [touched.versions for touched in questions.forward("scenario", "s1", sqlite, project.root).trained] == [
        [one],
        [two],
    ]
    touched = questions.forward("scenario", "v1", sqlite, project.root).evaluated
    assert [one.versions for one in touched] == [[], [one], [two]]
    client.set_registered_model_alias("toy", "champion", "1")
    assert questions.back("models:/toy@champion", sqlite, project.root).adapter == project.adapters[1], (
        "nothing of it is stored"
    )

    with pytest.raises(UserError, match=r"no models:/toy@best .*versions of toy: 3, 2, 1 @champion"):
        questions.back("models:/toy@best", sqlite, project.root)
    with pytest.raises(UserError, match=r"no models:/toy/4 that holds an adapter"):
        questions.back("models:/toy/4", sqlite, project.root)
    with pytest.raises(UserError, match=r"models:/toy is no version.*models:/<name>@<alias>"):
        questions.back("models:/toy", sqlite, project.root)
    with pytest.raises(UserError, match=r"knows no adapter '0123456789abcdef' \(it has 3 nodes.*lineage index"):
        questions.back("models:/toy/3", sqlite, project.root)


def test_the_run_is_named_as_in_mlflow(tmp_path: Path, empty_store: Path) -> None:
    (tmp_path / "p").mkdir()
    add_store(tmp_path / "p", empty_store)
    project = test_tracking.Project(tmp_path / "p")
    tracker, _ = project.log()
    assert project_lock.run_key(project_lock.read_lock(project.root)) == tracker.parent.data.tags["run_key"]


def test_what_is_not_known_is_one_sentence(project: Run, sqlite: Ledger) -> None:
    with pytest.raises(UserError, match="has no lineage yet"):
        questions.back("a", sqlite, project.root)
    index.index(project.root, sqlite)
    with pytest.raises(UserError, match=r"'mail' is no kind .* scenario, trajectory, batch, judge"):
        questions.forward("mail", "a", sqlite, project.root)
    for text in ("nothing", "", "%", "s"):
        with pytest.raises(UserError, match=r"no scenario|one of several: s1, s2, s3, s4"):
            questions.forward("scenario", text, sqlite, project.root)
    with pytest.raises(UserError, match=r"chain.yaml does not exist"):
        index.index(project.root / "run", sqlite)


def test_the_command(project: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(project.root)
    monkeypatch.delenv("FLYWHEEL_LEDGER_URL", raising=False)

    def command(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    (project.root / "run/receipt.json").unlink()
    out = command("index")
    assert "left out: run/receipt.json is missing\n" in out
    assert "nodes and" in out
    assert "8 trajectory" in out
    assert "0 nodes and 0 edges added" in command("index")
    shown = command("back", project.adapters[2])
    for text in (
        *project.adapters,
        "002 of run",
        "val 0.500 of 1",
        "8 trajectories of 3 scenarios, 2 judge calls",
        "seed 3",
    ):
        assert text in shown
    assert [
        step["adapter"] for step in json.loads(command("back", project.adapters[2], "--json"))["steps"]
    ] == project.adapters[::-1]
    shown = command("forward", "scenario", "s1")
    assert "2 adapters to train again" in shown
    assert "through an ancestor" in shown
    assert json.loads(command("forward", "scenario", "s3", "--json"))["trained"][0]["how"] == "directly"
    assert "3 more were evaluated on it, not trained" in command("forward", "scenario", "v1")
    assert "the ledger has 3 adapter" in command("rebuild")
    project.stages["rollout@001"]["cmd"] = "another"
    project.lock()
    assert "is no longer in the index" in command("rebuild")
    assert main(["forward", "scenario", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("error: the ledger knows no scenario 'nothing'")


@contextmanager
def arrow_peak() -> Iterator[Any]:
    """A pool that knows how much Arrow had at most."""
    import pyarrow as pa

    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def test_a_thousand_trajectories_without_their_turns(project: Run, ledger: Ledger) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number, folder = 1_000, project.root / "run/001"
    names = [f"001-s{place // 8}-{place % 8}" for place in range(number)]
    of = [f"s{place // 8}" for place in range(number)]
    common = {"adapter_hash": [project.adapters[0]] * number, "stop_reason": ["done"] * number}
    noise = [os.urandom(41_000) for _ in range(number)]
    batch = pa.table({"id": names, "scenario_id": of, "turns": noise} | common)
    pq.write_table(batch, folder / "trajectories.parquet")
    del batch, noise
    scores = {"score": [0.5] * number, "success": [True] * number, "explanation": ["why"] * number}
    pq.write_table(pa.table({"trajectory_id": names, "name": ["rule"] * number} | scores), folder / "rewards.parquet")
    project.write()
    with arrow_peak() as small:
        done = index.index(project.root, ledger, ["001"])
    with arrow_peak() as whole:
        pq.read_table(folder / "trajectories.parquet")
    assert done.nodes > number
    assert done.edges > 3 * number
    assert small.max_memory() < 10e6, "ids alone are 1 MB"
    assert whole.max_memory() > 40e6, "and the turns 40 MB"
    answer = questions.back(project.adapters[1], ledger, project.root)
    assert len(answer.steps[0].trajectories) == number
    assert trained(questions.forward("trajectory", "001-s77-3", ledger, project.root)) == {
        project.adapters[1]: "directly"
    }


def test_importing_loads_nothing_heavy() -> None:
    heavy = "torch vllm transformers mlflow prefect dvc pyarrow".split()
    program = f"import sys, addons.lineage.questions; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stdout == "[]\n"


def test_a_batch_is_linked_to_the_older_adapter_that_chain_yaml_names(project: Run, sqlite: Ledger) -> None:
    """With train.overlap the second batch is the first adapter's, and the second adapter continues the one between."""
    old, between, newest = project.adapters
    path = project.root / "run/002/trajectories.parquet"
    write_records([each.model_copy(update={"adapter_hash": old}) for each in read_records(Trajectory, path)], path)
    project.write()
    assert "batch 002 is of" in str(index.index(project.root, sqlite).left_out)
    chain = yaml.safe_load((project.root / "chain.yaml").read_text())
    chain["iterations"]["002"]["policy"] = "000"
    (project.root / "chain.yaml").write_text(yaml.safe_dump(chain))
    project.stages["update@002"]["deps"].append({"path": "run/000/adapter", "md5": project.md5("run/000/adapter")})
    project.lock()
    lineage = reader.Reader(project.root, {})
    rows = lineage.iteration("002", "001")
    assert lineage.left_out == []
    assert {
        ("adapter", between, "continued", "adapter", newest),
        ("batch", project.batch("002"), "trained", "adapter", newest),
        ("adapter", old, "sampled", "batch", project.batch("002")),
    } <= rows.edges.keys()


def test_a_batch_is_linked_to_the_adapter_that_it_was_played_against(project: Run) -> None:
    """The opponent is what drawn.json names, where that is the recorded one."""
    old, between, _ = project.adapters
    drawn = project.root / "run/002/drawn.json"
    drawn.write_text(json.dumps({"scenarios": [], "opponent": {"adapter": old, "moves": 9, "replaced": 1}}))
    (project.root / "run/001/drawn.json").write_text(json.dumps({"scenarios": [], "opponent": {"name": "random"}}))
    project.stages["rollout@002"]["outs"].append(
        {"path": "run/002/drawn.json", "md5": project.md5("run/002/drawn.json")}
    )
    project.lock()
    lineage = reader.Reader(project.root, {})
    links = (("001", "000"), ("002", "001"))
    faced = [edge for number, before in links for edge in lineage.iteration(number, before).edges]
    assert lineage.left_out == []
    assert [edge for edge in faced if edge[2] == "faced"] == [("adapter", old, "faced", "batch", project.batch("002"))]
    drawn.write_text(json.dumps({"scenarios": [], "opponent": {"adapter": between}}))  # not what dvc.lock recorded
    changed = reader.Reader(project.root, {})
    assert "faced" not in {edge[2] for edge in changed.iteration("002", "001").edges}
    assert "run/002/drawn.json" in str(changed.left_out)


# --- Runs that start from what is known


def begun(root: Path, source: Run) -> Run:
    """A run of two iterations that starts from iteration 002 of another one, after supervised training on three lines."""
    run = Run(root, seed=5)
    shutil.copytree(source.root / "run/002/adapter", root / "run/start/adapter")
    (root / "run/start/checkpoint").mkdir()
    (root / "run/start/checkpoint/state.json").write_text(json.dumps({"adapter": source.adapters[2], "steps": 0}))
    sft = run.adapter("sft", steps=0)
    run.adapters.append(sft)
    (root / "start/policy").mkdir(parents=True)
    (root / "start/policy/adapter").write_text("of the other run")
    lines = [{"source": "trace 7"}, {"source": f"{source.batch('001')[:12]}/001-s1-1"}, {}]
    (root / "start/demonstrations.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    policy = {"from": "models:/toy@champion", "resolved": "models:/toy/3", "adapter": source.adapters[2]}
    origin = {"asked": {}, "policy": policy, "demonstrations": {"rows": 3, "from": {"own.jsonl": 3}}}
    (root / "start/origin.json").write_text(json.dumps(origin))
    batch = [played("001", name, attempt, sft) for name in DRAWN["001"] for attempt in (0, 1)]
    write_records(batch, root / "run/001/trajectories.parquet")
    run.write()
    chain = yaml.safe_load((root / "chain.yaml").read_text())
    chain |= {"started": {"start": {"name": "start"}}, "warmed": {"sft": {"prev": "start"}}}
    chain["iterations"]["001"]["prev"] = "sft"
    (root / "chain.yaml").write_text(yaml.safe_dump(chain))
    run.stage("start@start", ["start/policy"], ["run/start/adapter", "run/start/checkpoint"])
    reads = ["run/start/checkpoint", "start/demonstrations.jsonl"]
    run.stage("sft@sft", reads, ["run/sft/adapter", "run/sft/checkpoint"])
    reads = [f"run/001/{name}.parquet" for name in ("trajectories", "rewards")]
    outputs = [f"run/001/{name}" for name in ("adapter", "checkpoint", "metrics.json")]
    run.stage("update@001", [*reads, "run/sft/checkpoint"], outputs)
    run.lock()
    return run


def test_back_goes_on_in_the_run_that_made_the_start(
    tmp_path: Path, sqlite: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = Run(tmp_path / "earlier")
    run = begun(tmp_path / "later", earlier)
    assert not index.index(earlier.root, sqlite).left_out
    assert not index.index(run.root, sqlite).left_out
    answer = questions.back(run.adapters[2], sqlite)
    order = [*run.adapters[2:0:-1], run.adapters[-1], *reversed(earlier.adapters)]
    assert [step.adapter for step in answer.steps] == order
    assert answer.unlinked == []
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    assert main(["back", run.adapters[2]]) == 0
    shown = capsys.readouterr().out
    assert f"started from models:/toy/3 (models:/toy@champion), adapter {earlier.adapters[2]}" in shown
    assert "learnt first from 3 demonstrations of own.jsonl" in shown


def test_forward_from_a_demonstrations_source(tmp_path: Path, sqlite: Ledger) -> None:
    """What a deletion has to find: the adapters that learnt from a trace, and from a trajectory of another run."""
    earlier = Run(tmp_path / "earlier")
    run = begun(tmp_path / "later", earlier)
    for each in (earlier, run):
        index.index(each.root, sqlite)
    later = {run.adapters[-1]: "directly"} | dict.fromkeys(run.adapters[1:3], "through an ancestor")
    assert trained(questions.forward("conversation", "trace 7", sqlite)) == later
    first = trained(questions.forward("trajectory", f"{earlier.batch('001')[:12]}/001-s1-1", sqlite))
    assert later.keys() | set(earlier.adapters[1:]) == first.keys()


def test_runs_from_different_starts_are_different_runs(tmp_path: Path) -> None:
    run = begun(tmp_path / "later", Run(tmp_path / "earlier"))
    with_both = project_lock.run_key(run.stages)
    assert [entry["cmd"] for entry in project_lock.begun(run.stages)] == ["run sft@sft", "run start@start"]
    run.stages["start@start"]["deps"][0]["md5"] = "0" * 32
    assert project_lock.run_key(run.stages) != with_both
    fresh = Run(tmp_path / "fresh", seed=5)
    assert project_lock.begun(fresh.stages) == []
    stale = fresh.stages | {
        name: run.stages[name] for name in ("sft@sft", "start@start")
    }  # of an earlier run, and unread
    assert project_lock.run_key(stale) == project_lock.run_key(fresh.stages)
