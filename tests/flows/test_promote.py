"""Promotion and rollback on a real MLflow store. The stage evaluate is a fake, which writes what was arranged."""

from __future__ import annotations

import base64
import dataclasses
import json
import shutil
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml

from addons.lineage import index, questions
from addons.lineage.__main__ import main
from addons.report import card
from environments.base import Scenario
from flows import evaluate, promote, rollback
from flows.deployment.settings import EvaluateSettings, PromoteSettings
from flows.promotion import change, evaluations, judging
from flows.promotion.judging import show_page
from flows.terminal import command
from steps.core import params
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation
from steps.core.params import EvaluateParams, PromoteParams
from steps.core.records import Reward, Trajectory, write_records
from steps.policy.adapter import adapter_hash
from steps.project import store
from steps.project.ledger import Ledger
from steps.registry import decisions, model, publish, verdict_report
from steps.registry.gate import Verdict
from tests.conftest import change_params

N = 60
PARAMS: dict[str, Any] = {"task": "toy", "scenarios": {"test": N}}


def write_evaluation(folder: Path, wins: int, adapter: str, split: str = "test") -> None:
    """What the stage evaluate writes, of a policy that succeeds at the first `wins` scenarios."""
    folder.mkdir(parents=True)
    ids = [scenario.id for scenario in SCENARIOS]
    summary = Evaluation(
        split=split, adapter_hash=adapter, n=N, success=wins / N, ci95=(0, 1), reward=0.5, turns=3, tokens=40
    )
    (folder / "summary.json").write_text(summary.model_dump_json())
    rewards = [
        Reward(trajectory_id=f"{split}-{scenario}-0", scenario_id=scenario, name="rule", score=1, success=place < wins)
        for place, scenario in enumerate(ids)
    ]
    played = [
        Trajectory(
            id=f"{split}-{scenario}-0",
            scenario_id=scenario,
            attempt=0,
            adapter_hash=adapter,
            turns=(),
            stop_reason="done",
        )
        for scenario in ids
    ]
    write_records(rewards, folder / "rewards.parquet")
    write_records(played, folder / "trajectories.parquet")


PICTURE = verdict_report.picture  # what a test replaces
SCENARIOS = [Scenario.make("toy", "test", [], {"number": number, "kind": "ab"[number % 2]}) for number in range(N)]


class FakeEvaluate:
    """Stands for the stage evaluate as flows.rescore's `run_stage` runs it: writes the wins arranged for each adapter."""

    def __init__(self) -> None:
        self.wins: dict[str, int] = {"scripted": 50}
        self.again: dict[str, int] = {}  # the same on the regression set
        self.challenger = ""  # its adapter, in whose folder the regression set lies
        self.asked: list[tuple[str, str, EvaluateParams]] = []

    def __call__(self, stage: str, who: str, arguments: dict[str, str]) -> None:
        read = params.load(arguments["params"], EvaluateParams)
        is_regression = who.startswith("regression")
        place = f"run/promote/{self.challenger}/regression" if is_regression else "run/scenarios"
        assert (stage, arguments["split"], arguments["scenarios"]) == ("evaluate", "test", place)
        assert arguments["task_data"] == "tasks_data/toy"
        policy = adapter_hash(Path(arguments["adapter"])) if "adapter" in arguments else read.policy.kind
        self.asked.append((who, policy, read))
        folder = Path(arguments["evaluation"])
        shutil.rmtree(folder, ignore_errors=True)
        write_evaluation(folder, (self.again if is_regression else self.wins)[policy], policy)


class Project:
    """A project's folder with a run in it, and the registry beside."""

    def __init__(self, root: Path) -> None:
        self.root, self.evaluate = root, FakeEvaluate()
        self.pages: list[Verdict] = []  # what Prefect was to show
        (root / "params.yaml").write_text(yaml.safe_dump(PARAMS))
        (root / "run/scenarios").mkdir(parents=True)
        write_records(SCENARIOS, root / "run/scenarios/test.parquet")
        report = {"passed": True, "scenarios": {"test": N}, "found": {"content": 0, "source": 0, "overlap": 0}}
        (root / "run/scenarios/contamination.json").write_text(json.dumps(report))
        (root / "tasks_data/toy").mkdir(parents=True)
        (root / "tasks_data/toy/data.json").write_text("{}")
        (root / "dvc.lock").write_text(yaml.safe_dump({"stages": {"test@base": {}, "test@best": {}}}))
        self.adapter("000", 10)

    def adapter(self, number: str, wins: int) -> str:
        """run/<number>: an adapter, and its evaluation."""
        folder = self.root / "run" / number / "adapter"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text('{"r": 4}')
        (folder / "adapter_model.safetensors").write_bytes(number.encode())
        name = adapter_hash(folder)
        write_evaluation(folder.parent / "test", wins, name)
        self.evaluate.wins[name] = wins
        return name

    def trained(self, number: str, wins: int) -> str:
        """A run that ends with this adapter, registered as the flow does it; returns its version. The first is made
        champion, as if it had passed the gate before."""
        version = self.registered(number, wins)
        if "champion" not in self.aliases():
            self.registry().client.set_registered_model_alias("toy", "champion", version)
        return version

    def registered(self, number: str, wins: int) -> str:
        """The same, and no champion is made."""
        self.adapter(number, wins)
        (self.root / "chain.yaml").write_text(f'tested: {{base: "000", best: "{number}"}}\n')
        parameters = params.load("params.yaml", PromoteParams)
        run = self.root / "run"
        return publish.publish(self.root, run / number / "adapter", run / number / "test", run / "000/test", parameters)

    def registry(self) -> model.RegisteredModel:
        return model.read_registry(self.root, "toy")

    def aliases(self) -> dict[str, str]:
        return self.registry().aliases

    def tags(self, version: str) -> dict[str, str]:
        return dict(self.registry().versions[version].tags)


@pytest.fixture
def project(here: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(here)
    monkeypatch.setattr(evaluations, "run_stage", project.evaluate)
    monkeypatch.delenv("FLYWHEEL_LEDGER_URL", raising=False)
    # The real one needs Prefect's server.
    monkeypatch.setattr(judging, "show_page", lambda verdict, _: project.pages.append(verdict))
    monkeypatch.setattr(verdict_report, "picture", lambda _, path: path.write_bytes(b"0.3 s of drawing"))
    return project


@pytest.mark.parametrize(
    ("wins", "says"),
    [
        (40, "success 0.667 against 0.167 of the base: +0.500 ["),
        (
            12,
            "failed: base; success 0.200 against 0.167 of the base: +0.033 [-0.032, +0.096] (95 %); the lower end must",
        ),
    ],
    ids=("better", "no better"),
)
def test_the_first_version_passes_the_gate_against_the_base_policy_or_is_refused(
    project: Project, capsys: pytest.CaptureFixture[str], wins: int, says: str
) -> None:
    project.registered("004", wins)
    assert project.aliases() == {"challenger": "1"}
    with pytest.raises(
        UserError, match="toy has no champion yet: `make promote` judges its newest version by the gate"
    ):
        project.registry().version("champion")
    verdict = promote.promote.fn(PromoteSettings())
    assert verdict is not None
    assert (verdict.against, verdict.look, verdict.promoted) == ("base", 1, wins == 40)
    assert says in verdict.reason
    assert project.aliases() == {"challenger": "1"} | ({"champion": "1"} if wins == 40 else {})
    assert project.tags("1")["promoted"] == str(wins == 40).lower()
    output = capsys.readouterr().out
    ends = "is champion." if wins == 40 else f"is refused, {verdict.reason}. There is no champion."
    assert f"toy version 1 {ends}" in output


def test_the_champion_is_not_compared_with_itself(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever became of its tags; and another version with the champion's adapter is told from it."""
    project.trained("004", 40)
    project.registry().client.set_model_version_tag("toy", "1", "adapter_hash", "edited")
    monkeypatch.setattr(promote, "prepare", lambda by_hand: None)
    monkeypatch.setattr(promote, "promote", promote.promote.fn)  # without Prefect's engine and its server
    monkeypatch.setattr(promote, "run_command", lambda work: work())
    for words in ([], ["--version", "1"], ["--version", "champion"], ["--dry-run"]):
        monkeypatch.setattr(sys, "argv", ["promote", *words])
        assert promote.main() == 0
        assert "toy version 1 is the champion already: nothing to do." in capsys.readouterr().out
    assert project.evaluate.asked == []

    def version(number: str, adapter: str | None) -> Any:
        return SimpleNamespace(version=number, tags={"adapter_hash": adapter} if adapter else {})

    assert judging.same_adapter(version("1", "a"), version("2", "a"))
    assert not judging.same_adapter(version("1", "a"), version("2", "b"))
    assert not judging.same_adapter(version("1", None), version("2", None)), "nothing is known of either"


def test_looks_at_the_test_split_are_counted(project: Project) -> None:
    """Dry runs and flows.evaluate show verdicts too. The same two policies are one look, and the champion alone is none."""
    project.trained("004", 30)
    shown = evaluate.evaluate.fn(EvaluateSettings())
    assert (shown.look, shown.against) == (0, "base")
    project.trained("007", 36)
    first = promote.promote.fn(PromoteSettings(dry_run=True))
    assert first is not None
    assert (first.look, first.tail, first.promoted) == (1, 0.025, True)
    project.trained("009", 36)
    second = promote.promote.fn(PromoteSettings())
    assert second is not None
    assert (second.look, second.tail, second.promoted) == (2, pytest.approx(0.05 / 6), False)
    assert "This is look 2 at this test split" in project.registry().versions["3"].description
    again = evaluate.evaluate.fn(EvaluateSettings())
    assert (again.look, again.hash) == (2, second.hash)
    assert len(second.wins) == len(first.wins) == 6
    (project.root / "chain.yaml").write_text('tested: {base: "000", best: "007"}\n')
    promoted = promote.promote.fn(PromoteSettings(version="2"))
    assert promoted is not None
    assert (promoted.look, promoted.promoted) == (1, True)
    (project.root / "chain.yaml").write_text('tested: {base: "000", best: "009"}\n')
    against_the_new = promote.promote.fn(PromoteSettings(version="3"))
    assert against_the_new is not None
    assert (against_the_new.look, against_the_new.promoted) == (3, False)


def test_the_task_says_which_scenarios_are_alike(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """15 of 60 scenarios won are enough if they are independent, and not if they are two groups of ten and five of a third.
    Where the task cannot say it, as with scenarios of an older form, each counts for itself."""
    project.trained("004", 30)
    project.trained("007", 45)
    independent = promote.promote.fn(PromoteSettings(dry_run=True))
    assert independent is not None
    assert (independent.clusters, independent.clustered, independent.promoted) == (60, False, True)
    assert "each scenario counts as independent: toy is not there to say which are alike" in capsys.readouterr().out

    class Grouped:
        is_agent = False
        task_classes: ClassVar[dict[str, Any]] = {}
        sources = ()
        key = "number"

        @staticmethod
        def has_player(name: str) -> bool:
            return True

        @staticmethod
        def load(folder: Path) -> Any:
            return json.loads((folder / "data.json").read_text())

        @classmethod
        def cluster(cls, scenario: Scenario, data: Any) -> str:
            return str(scenario.data[cls.key] // 10)

    monkeypatch.setattr("environments.load", lambda task: Grouped)
    grouped = promote.promote.fn(PromoteSettings(dry_run=True))
    assert grouped is not None
    assert (grouped.clusters, grouped.largest, grouped.clustered, grouped.promoted) == (6, 10, True, False)
    Grouped.key = "owner"
    older = promote.promote.fn(PromoteSettings(dry_run=True))
    assert older is not None
    assert older.text() == independent.text()
    (project.root / "tasks_data/toy/data.json").unlink()
    with pytest.raises(UserError, match=r"data\.json"):
        promote.promote.fn(PromoteSettings(dry_run=True))


def test_a_better_challenger_becomes_champion_with_its_evidence(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.trained("004", 30)
    project.trained("007", 45)
    verdict = promote.promote.fn(PromoteSettings())
    assert verdict is not None
    assert (verdict.promoted, verdict.against) == (True, "champion")
    assert verdict.losses == ()
    assert len(verdict.wins) == 15
    assert {name: shown.success for name, shown in verdict.sides.items()} == {
        "challenger": 45 / N,
        "champion": 30 / N,
        "base": 10 / N,
        "scripted": 50 / N,
    }
    assert project.aliases() == {"challenger": "2", "champion": "2", "previous": "1"}
    assert "toy version 2 is champion in place of version 1." in capsys.readouterr().out

    folder = project.root / "run/promote" / verdict.sides["challenger"].adapter_hash
    assert (folder / "verdict.json").read_text() == verdict.text()
    assert project.pages == [verdict]
    tags = project.tags("2")
    assert (tags["promoted"], tags["verdict"]) == ("true", verdict.hash)
    client = project.registry().client
    logged = client.download_artifacts(tags["verdict_run"], "promotion", str(project.root))
    assert {path.name for path in Path(logged).iterdir()} == {"verdict.json", "verdict.md", "verdict.png"}
    assert (Path(logged) / "verdict.json").read_text() == verdict.text()
    assert promote.promote.fn(PromoteSettings()) is None, "it is champion already"


def test_what_is_evaluated_is_the_registrys_adapter_under_its_own_base_model(project: Project) -> None:
    """The champion's folder in run/ is gone; its base model was another one, and its rank differs from params.yaml's."""
    (project.root / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"policy": {"base_model": "org/old"}}))
    project.trained("004", 30)
    champion = adapter_hash(project.root / "run/004/adapter")
    shutil.rmtree(project.root / "run/004")
    (project.root / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"policy": {"base_model": "org/new"}}))
    project.trained("007", 45)
    promote.promote.fn(PromoteSettings(dry_run=True))
    (who, policy, read), (other, kind, scripted) = project.evaluate.asked
    assert (who, policy, other, kind) == ("champion", champion, "scripted", "scripted")
    assert (read.policy.base_model, read.policy.revision, read.policy.lora.rank) == ("org/old", None, 4)
    assert scripted.policy.kind == "scripted"


def test_an_agent_of_the_users_own_is_judged_without_a_scripted_player(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from environments.kit.agents import agent_env

    module = ModuleType("toy")
    module.rollout = lambda episode: 1.0  # pyrefly: ignore[missing-attribute]
    module.scenarios = lambda split, count, seed: []  # pyrefly: ignore[missing-attribute]
    monkeypatch.setattr("environments.load", lambda task: agent_env(module))
    project.trained("004", 30)
    project.trained("007", 45)
    verdict = promote.promote.fn(PromoteSettings(dry_run=True))
    assert verdict is not None
    assert verdict.promoted
    assert [who for who, _, _ in project.evaluate.asked] == ["champion"]
    assert "scripted" in verdict.text()
    assert "not measured" in verdict.text()


def test_the_same_evaluation_is_not_made_twice(project: Project) -> None:
    project.trained("004", 30)
    project.trained("007", 45)
    first = promote.promote.fn(PromoteSettings(dry_run=True))
    assert [who for who, _, _ in project.evaluate.asked] == ["champion", "scripted"]
    again = promote.promote.fn(PromoteSettings(dry_run=True))
    assert len(project.evaluate.asked) == 2
    assert first is not None
    assert again is not None
    assert first.text() == again.text()
    (project.root / "tasks_data/toy/data.json").write_text('{"other": 1}')
    promote.promote.fn(PromoteSettings(dry_run=True))
    assert len(project.evaluate.asked) == 4
    (project.root / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"evaluate": {"max_tokens": 32}}))
    promote.promote.fn(PromoteSettings(dry_run=True))
    assert len(project.evaluate.asked) == 6


def test_a_dry_run_changes_nothing_in_mlflow(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.trained("004", 30)
    project.trained("007", 45)
    before = project.aliases(), project.tags("2")
    verdict = promote.promote.fn(PromoteSettings(dry_run=True))
    assert verdict is not None
    assert verdict.promoted
    assert (project.aliases(), project.tags("2")) == before
    output = capsys.readouterr().out
    assert "toy version 2 would be champion in place of version 1." in output
    assert "nothing in MLflow (--dry-run)" in output


def test_the_champion_itself_is_compared_with_the_base_policy(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.trained("004", 45)
    judged = judging.challenge(PromoteSettings(dry_run=True), also_champion=True)
    assert judged is not None
    judging.print_end(judged, dry_run=True)
    assert "toy version 1 is the champion already: it passes against the base policy." in capsys.readouterr().out


def test_one_that_is_no_better_is_refused_on_the_record(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.trained("004", 43)
    project.trained("007", 45)
    verdict = promote.promote.fn(PromoteSettings())
    assert verdict is not None
    assert not verdict.promoted
    assert project.aliases() == {"challenger": "2", "champion": "1"}
    assert (project.tags("2")["promoted"], project.tags("2")["verdict"]) == ("false", verdict.hash)
    output = capsys.readouterr().out
    assert "NO  champion" in output
    assert "toy version 2 is refused, failed: champion; success 0.750 against 0.717 of the champion" in output
    assert "Champion stays version 1." in output


def test_it_is_logged_to_the_run_that_made_the_adapter(project: Project) -> None:
    """As flows.train does: the iteration's run logs the adapter before it is registered."""
    project.trained("004", 30)
    project.adapter("007", 45)
    client, parameters = project.registry().client, params.load("params.yaml", PromoteParams)
    experiment = store.experiment(client, project.root, "toy")
    run_id = client.create_run(experiment).info.run_id
    publish.logged_adapter(client, experiment, project.root / "run/007/adapter", publish.about(parameters), run_id)
    shutil.rmtree(project.root / "run/007")
    project.trained("007", 45)
    promote.promote.fn(PromoteSettings())
    assert project.tags("2")["verdict_run"] == run_id
    assert {artifact.path for artifact in client.list_artifacts(run_id, "promotion")} >= {"promotion/verdict.json"}


def test_the_verdict_is_in_the_models_card(project: Project) -> None:
    project.trained("004", 43)
    project.trained("007", 45)
    promote.promote.fn(PromoteSettings())
    first = project.registry().versions["2"].description
    text, _, section = first.partition(card.VERDICT)
    assert card.is_card(text)
    assert "**Not promoted** (verdict `" in section
    assert "| champion | **no** | " in section
    assert "60 scenarios: 2 won and 0 lost against the champion." in section
    promote.promote.fn(PromoteSettings())
    assert project.registry().versions["2"].description == first
    assert card.VERDICT not in project.registry().versions["1"].description


def test_without_who_makes_cards_a_card_stays_as_it_is(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict is then in the version's tags and its run, and in run/promote/."""
    project.trained("004", 43)
    project.trained("007", 45)
    text = project.registry().versions["2"].description
    assert card.is_card(text)
    every = promote.every
    monkeypatch.setattr(promote, "every", lambda port: every(port) if port != "card" else iter(()))
    verdict = promote.promote.fn(PromoteSettings())
    assert verdict is not None
    assert project.registry().versions["2"].description == text
    assert project.tags("2")["verdict"] == verdict.hash


def test_decisions_and_their_verdicts_are_rows_of_the_ledger(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused, refused again (which is no other decision), promoted, taken back."""
    project.trained("004", 43)
    project.trained("007", 45)
    refused = promote.promote.fn(PromoteSettings())
    promote.promote.fn(PromoteSettings())
    project.trained("009", 58)
    promoted = promote.promote.fn(PromoteSettings())
    rollback.rollback(project.root, "toy", "previous", "wrong dates")
    assert refused is not None
    assert promoted is not None
    first, two, three = (project.tags(number)["adapter_hash"] for number in "123")
    with Ledger() as ledger, ledger.engine.connect() as link:
        rows = [dataclasses.astuple(row)[:-2] for row in decisions.listed(link)]
        [who] = {row.decided_by for row in decisions.listed(link)}
        assert rows == [
            ("refusal", "toy", "2", two, "1", first, refused.reason, refused.hash),
            ("promotion", "toy", "3", three, "1", first, promoted.reason, promoted.hash),
            ("rollback", "toy", "1", first, "3", three, "wrong dates", None),
        ]
        assert [entry["verdict"] for entry in decisions.evidence(link)] == [
            json.loads(verdict.text()) for verdict in (refused, promoted)
        ]
        back = questions.back("models:/toy/3", ledger)
        assert [(entry["verdict"], entry["as"]) for entry in back.verdicts] == [(promoted.hash, "challenger")]
        assert back.verdicts[0]["wins"] == list(promoted.wins)
        assert [entry.event for entry in back.decisions] == ["promotion", "rollback"]
        old = questions.back("models:/toy@champion", ledger)
        assert {(entry["verdict"], entry["as"]) for entry in old.verdicts} == {
            (refused.hash, "champion"),
            (promoted.hash, "champion"),
        }
        touched = questions.forward("scenario", SCENARIOS[0].id, ledger)
        assert {entry["verdict"] for entry in touched.verdicts} == {refused.hash, promoted.hash}
        assert [entry.event for entry in touched.decisions] == ["refusal", "promotion"]
        assert "scripted" not in {entry.adapter for entry in touched.evaluated}
    capsys.readouterr()
    assert main(["back", "models:/toy/3"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert (
        f"verdict {promoted.hash} (here: challenger) for {three}: success 0.967 against 0.717 of the champion" in output
    )
    assert "15 won and 0 lost of 60 scenarios against the champion" in output
    assert f"rollback of toy 1 by {who}, champion before: 3: wrong dates" in output


@pytest.mark.parametrize(("wins", "is_promoted"), [(30, True), (10, False)])
def test_the_regression_set_can_refuse(project: Project, wins: int, is_promoted: bool) -> None:
    """The champion succeeds at 20 of the scenarios that went wrong before."""
    project.trained("004", 43)
    promote.promote.fn(PromoteSettings())
    version = project.trained("009", 58)
    first, second = (project.tags(number)["adapter_hash"] for number in ("1", version))
    project.evaluate.challenger, project.evaluate.again = second, {first: 20, second: wins}
    folder = project.root / "ingested/toy"
    folder.mkdir(parents=True)
    rows = [scenario.model_dump(mode="json") | {"source": f"capture {scenario.id}"} for scenario in SCENARIOS]
    (folder / "regression.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    verdict = promote.promote.fn(PromoteSettings())
    assert verdict is not None
    assert verdict.promoted is is_promoted
    check = next(check for check in verdict.checks if check.name == "regression")
    assert check.passed is is_promoted
    assert check.text.startswith(
        f"success {wins / N:.3f} against {20 / N:.3f} of the champion on {N} scenarios that went wrong before: "
        f"{(wins - 20) / N:+.3f} ["
    )
    assert check.text.endswith("(90 %); the difference must be -0.100 at least, or within chance of 0")


@pytest.mark.parametrize(("wins", "test", "is_promoted"), [(35, 43, True), (35, 30, False), (20, 58, False)])
def test_the_regression_set_can_decide(project: Project, wins: int, test: int, is_promoted: bool) -> None:
    """The champion succeeds at 43 test scenarios, and at 20 of those that went wrong: what is better at these, and hardly
    worse at the others, is promoted."""
    project.trained("004", 43)
    promote.promote.fn(PromoteSettings())
    version = project.trained("009", test)
    change_params(project.root, {"promote": {"decides": "regression"}})
    refused = promote.promote.fn(PromoteSettings(dry_run=True))
    assert refused is not None
    assert refused.reason.startswith("failed: "), "there is no such set yet"
    assert "there is no regression set" in refused.reason
    first, second = (project.tags(number)["adapter_hash"] for number in ("1", version))
    project.evaluate.challenger, project.evaluate.again = second, {first: 20, second: wins}
    folder = project.root / "ingested/toy"
    folder.mkdir(parents=True)
    rows = [scenario.model_dump(mode="json") | {"source": f"capture {scenario.id}"} for scenario in SCENARIOS]
    (folder / "regression.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    verdict = promote.promote.fn(PromoteSettings())
    assert verdict is not None
    assert verdict.promoted is is_promoted
    decided = next(check for check in verdict.checks if check.name == "regression")
    assert decided.text.startswith(
        f"success {wins / N:.3f} against {20 / N:.3f} of the champion on {N} scenarios that went"
    )
    assert decided.passed is (wins > 20)
    assert next(check for check in verdict.checks if check.name == "champion").passed is (test > 40)
    assert is_promoted is (verdict.reason == decided.text)


def test_with_a_canary_share_a_version_is_on_trial_before_it_is_champion(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    change_params(project.root, {"serve": {"canary": 0.1}})
    project.trained("004", 30)
    promote.promote.fn(PromoteSettings())
    assert project.registry().aliases["champion"] == "1", "without a champion there is nobody to be compared with"
    version = project.trained("009", 58)
    verdict = promote.promote.fn(PromoteSettings(dry_run=True))
    assert verdict is not None
    assert verdict.promoted
    assert f"toy version {version} would get 10% of the conversations" in capsys.readouterr().out
    assert "canary" not in project.registry().aliases
    promote.promote.fn(PromoteSettings())
    aliases, tags = project.registry().aliases, project.tags(version)
    assert (aliases["champion"], aliases["canary"]) == ("1", version)
    assert "promoted" not in tags
    assert {"verdict", "canary_since", "canary_looks"} <= tags.keys()
    with Ledger() as ledger, ledger.reading() as link:
        last = decisions.listed(link)[-1]
    assert (last.event, last.version) == ("canary", version)


def test_without_the_ledger_nothing_is_judged(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts the looks at the test split."""
    project.trained("004", 30)
    project.trained("007", 45)
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", "sqlite:////proc/no/ledger.db")
    with pytest.raises(
        UserError, match=r"looks at the test split cannot be counted, .*see FLYWHEEL_LEDGER_URL"
    ) as problem:
        promote.promote.fn(PromoteSettings())
    assert "\n" not in str(problem.value)
    assert project.aliases()["champion"] == "1"


def test_a_ledger_that_goes_away_stops_neither_promotion_nor_rollback(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.trained("004", 30)
    project.trained("007", 45)
    log_verdict = promote.log_verdict

    def log_and_lose(judged: judging.Challenge, place: str) -> str:
        monkeypatch.setenv("FLYWHEEL_LEDGER_URL", "sqlite:////proc/no/ledger.db")
        return log_verdict(judged, place)

    monkeypatch.setattr(promote, "log_verdict", log_and_lose)
    verdict = promote.promote.fn(PromoteSettings())
    assert verdict is not None
    assert project.aliases()["champion"] == "2"
    rollback.rollback(project.root, "toy", "previous", "slow")
    assert project.aliases()["champion"] == "1"
    output = capsys.readouterr().err
    assert output.count("The ledger was not written: ") == 2
    assert len(output.splitlines()) == 2
    monkeypatch.delenv("FLYWHEEL_LEDGER_URL")
    with Ledger() as ledger:
        index.add_verdict(project.root, ledger, f"run/promote/{project.tags('2')['adapter_hash']}")
        assert [entry["verdict"] for entry in questions.back("models:/toy/2", ledger).verdicts] == [verdict.hash]


def test_prefect_shows_the_table_and_the_picture(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_report, "picture", PICTURE)
    project.trained("004", 30)
    project.trained("007", 45)
    promote.promote.fn(PromoteSettings(dry_run=True))
    (verdict,) = project.pages
    (png,) = project.root.glob("run/promote/*/verdict.png")
    artifacts: dict[str, tuple[str, str]] = {}
    for kind in ("markdown", "image"):

        def keep(content: str, key: str, description: str, kind: str = kind) -> None:
            artifacts[kind] = (key, content)

        monkeypatch.setattr(f"prefect.artifacts.create_{kind}_artifact", keep)
    show_page(verdict, png)
    assert artifacts["markdown"] == ("promotion", verdict_report.table(verdict))
    key, content = artifacts["image"]
    assert key == "verdict"
    assert base64.b64decode(content.removeprefix("data:image/png;base64,")) == png.read_bytes()
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("other run", r"toy version 1 is adapter \w+, and run/007/adapter is \w+: run/ is of another run; bring that"),
        ("no version", "toy has no version 9: give one of 1, 2, challenger, champion"),
        ("no registry", "holds no version of another: `make train` registers one"),
        ("no adapter", "run/007/adapter, which chain.yaml names as the best, does not exist: `.venv/bin/dvc checkout`"),
        ("no report", "run/scenarios/contamination.json does not exist: the stage scenarios makes it"),
        ("no test", "run/007/test/summary.json does not exist: evaluate it again"),
        ("not finished", "what was tested is not of these parameters: dvc.lock has no test@base"),
        ("lost files", r"what MLflow holds of toy version 1 is not adapter \w+: its files were changed or lost"),
    ],
)
def test_what_does_not_fit_is_one_sentence(project: Project, what: str, says: str) -> None:
    project.trained("004", 30)
    project.trained("007", 45)
    version = {"other run": "1", "no version": "9"}.get(what)
    if what == "other run":
        project.registry().client.set_registered_model_alias("toy", "champion", "2")
    elif what == "no registry":
        (project.root / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"register": {"name": "another"}}))
    elif what == "no adapter":
        shutil.rmtree(project.root / "run/007/adapter")
    elif what == "no report":
        (project.root / "run/scenarios/contamination.json").unlink()
    elif what == "no test":
        shutil.rmtree(project.root / "run/007/test")
    elif what == "not finished":
        (project.root / "dvc.lock").unlink()
    elif what == "lost files":
        for path in (project.root / ".flywheel/mlartifacts").rglob("adapter_model.safetensors"):
            path.write_bytes(b"others")
    before = project.aliases() if what != "no registry" else {}
    with pytest.raises(UserError, match=says) as problem:
        promote.promote.fn(PromoteSettings(version=version or "challenger"))
    assert "\n" not in str(problem.value)
    assert what == "no registry" or project.aliases() == before


def test_a_champion_that_changed_meanwhile_is_not_overwritten(project: Project) -> None:
    project.trained("004", 30)
    project.trained("007", 45)
    registry = project.registry()
    change.decide(project.registry(), "promotion", "2", "better", change.champion_writes(registry, "2"))
    with pytest.raises(UserError, match="the champion of toy has become version 2 meanwhile: run the same again"):
        change.decide(registry, "promotion", "2", "better", change.champion_writes(registry, "2"))


# --- Rollback


def test_rollback_goes_to_the_previous_champion_and_says_why(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, wins in (("004", 20), ("007", 35), ("009", 50)):
        project.trained(number, wins)
        promote.promote.fn(PromoteSettings())
    assert project.aliases() == {"challenger": "3", "champion": "3", "previous": "2"}
    capsys.readouterr()

    def command(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rollback", *words])
        code = rollback.main()
        output = capsys.readouterr()
        return code, output.out + output.err

    assert command("--why", "wrong dates", "--dry-run") == (
        0,
        "toy: champion was version 3, and would be version 2 (wrong dates)\n",
    )
    assert project.aliases()["champion"] == "3"
    assert command("--why", "wrong dates") == (0, "toy: champion was version 3, and is version 2 (wrong dates)\n")
    assert project.aliases() == {"challenger": "3", "champion": "2", "previous": "3"}
    assert project.tags("3")["rolled_back"] == "to version 2: wrong dates"
    assert project.tags("2")["restored"] == "from version 3: wrong dates"
    assert command("--to", "1", "--why", "all of them")[0] == 0
    assert project.aliases() == {"challenger": "3", "champion": "1", "previous": "2"}

    for words, says in {
        ("--to", "1"): "version 1 of toy is champion already",
        ("--to", "9"): "toy has no version 9: give one of 1, 2, 3, challenger, champion, previous",
        ("--to", "3"): "version 3 of toy is later than the champion, 1: forward it goes through the gate alone",
    }.items():
        code, output = command(*words, "--why", "x")
        assert (code, says in output, output.count("\n")) == (2, True, 1), output
    code, output = command("--why", " ")
    assert (code, "--why is empty" in output) == (2, True)
    assert project.aliases() == {"challenger": "3", "champion": "1", "previous": "2"}


def test_rollback_without_a_previous_champion_is_one_sentence(project: Project) -> None:
    project.trained("004", 30)
    with pytest.raises(UserError, match="toy has no alias previous, for its champion never changed: name a version"):
        rollback.rollback(project.root, "toy", "previous", "why not")
    project.registry().client.delete_registered_model_alias("toy", "champion")
    with pytest.raises(UserError, match="toy has no champion that could be taken back"):
        rollback.rollback(project.root, "toy", "previous", "why not")


# --- The command


@pytest.mark.parametrize(("wins", "code"), [(45, 0), (31, promote.REFUSED)])
def test_the_exit_code_says_whether_it_was_promoted(
    project: Project, monkeypatch: pytest.MonkeyPatch, wins: int, code: int
) -> None:
    project.trained("004", 30)
    project.trained("007", wins)
    monkeypatch.setattr(promote, "promote", promote.promote.fn)  # without Prefect's engine and its server
    monkeypatch.setattr(promote, "prepare", lambda by_hand: None)
    monkeypatch.setattr(command.handover, "stop_workers", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # for good, as in a process that ends then
    monkeypatch.setattr(sys, "argv", ["promote", "--dry-run"])
    assert promote.main() == code
    monkeypatch.setattr(sys, "argv", ["promote", "--version", "9"])
    assert promote.main() == 2
