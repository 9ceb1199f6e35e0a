"""A judge that answers with rubbish: no answer wedges the stage, becomes a score that it does not state, or fills memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from addons.judges import ruler
from addons.judges.prompts import Group
from addons.judges.section import Ruler
from addons.models import client
from addons.models.replies import REPLIES
from addons.models.section import Endpoint
from steps.core.errors import UserError
from steps.core.records import Reward, read_records
from steps.project.ledger import Ledger
from tests.conftest import ROOT
from tests.support.hostile_judge import BAD, GOOD, WIRE, HostileJudge
from tests.support.judge_server import Judge
from tests.support.judged import Stage, attempt, group, quality, words
from tests.support.openai_server import Answer, Body, Server

# Of two attempts each; most are asked about twice, because the first answer cannot be used.
GROUPS = [100, pytest.param(520, marks=pytest.mark.nightly)]
PROGRAM = """
import json, resource, sys
from pathlib import Path
from addons.models import client
from tests.support.judged import Stage, group

client.SHORTEST = 0.001
folder, quiet, hostile, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
peaks = []
for name, url, groups in (("quiet", quiet, 20), ("first", hostile, count), ("second", hostile, count)):
    endpoint = {"model": name.replace("second", "first"), "base_url": url, "max_retries": 1, "timeout_seconds": 20}
    score = {"judges": {"ruler": 1}, "ruler": {"endpoint": endpoint, "orders": 1, "probes": 0.0}}
    Stage(folder / name, [group(number, 2) for number in range(groups)], score).run()
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(json.dumps(peaks))
"""


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(client, "SHORTEST", 0.001)


def settings(server: Server, **more: Any) -> Ruler:
    fields = {"model": "judge", "base_url": server.url, "max_retries": 1} | more.pop("endpoint", {})
    return Ruler(endpoint=Endpoint.model_validate(fields), **{"probes": 0.0, "orders": 1} | more)


def is_plain(text: str) -> bool:
    return all(unicodedata.category(sign) not in ("Cc", "Cs") for sign in text if sign not in "\n\t")


@pytest.mark.parametrize("groups", GROUPS)
def test_hostile_answers_by_the_hundred(tmp_path: Path, groups: int) -> None:
    judge = HostileJudge(seed=9)
    with Server(Judge()) as quiet, judge:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), quiet.url, judge.url, str(groups)]
        out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=240).stdout
    before, _, after = json.loads(out.splitlines()[-1])
    assert judge.kinds.total() >= 1.9 * groups
    assert set(judge.kinds) == {*GOOD, *BAD, *WIRE}
    assert after - before <= 200, "MB of memory, at the most that the process ever had"

    kinds = {re.findall(r"What is \d+ \* \d+\?", shown)[0]: given for shown, given in judge.given.items()}
    qualities = {one.id: quality(one) for number in range(groups) for one in group(number, 2).trajectories}
    asked = {
        group(number, 2).scenario.id: str(group(number, 2).scenario.messages[-1]["content"]) for number in range(groups)
    }
    rewards = read_records(Reward, tmp_path / "first" / "rewards.parquet")
    assert [reward.trajectory_id for reward in rewards] == list(qualities)
    for reward in rewards:
        answers = kinds.get(asked[reward.scenario_id], ["not asked"])
        if reward.score is None:
            assert answers[0] not in GOOD
            assert re.match(r"ruler × 1: not scored: .{10}", reward.explanation)
        else:
            assert reward.score == qualities[reward.trajectory_id] or (reward.score == 0.0 and "zeros" in answers), (
                answers
            )
    scored = sum(reward.score is not None for reward in rewards)
    assert len(rewards) / 4 < scored < len(rewards), "neither all nor nothing is taken"
    for name in ("rewards.parquet", "judgements.jsonl", "judge.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    for line in (tmp_path / "first" / "judgements.jsonl").read_text().splitlines():
        judgement = json.loads(line)
        assert all(map(is_plain, [judgement["problem"], *judgement["reasons"].values()]))
    assert all(is_plain(reward.explanation) for reward in rewards)


def test_a_ledger_that_holds_such_an_answer_comes_free(tmp_path: Path) -> None:
    """Rows as earlier versions stored them: lone surrogates, control characters, deep nesting, negative counts."""
    groups = [group(number, 2) for number in range(4)]
    with Server(Judge()) as server:
        stage = Stage(tmp_path / "stage", groups, {"judges": {"ruler": 1}, "ruler": settings(server).model_dump()})
        stage.run()
        assert server.calls == 4
        with Ledger() as ledger, ledger.engine.begin() as connection:
            rows = connection.execute(REPLIES.select()).mappings().all()
            deep = json.loads("[" * 200 + "]" * 200)
            for row, change in zip(rows, ("reason", "deep", "no message", "counts"), strict=True):
                reply, more = dict(row["reply"]), {}
                text = reply["message"]["content"]
                if change == "reason":
                    reply["message"] = {"content": text.replace("it is", r"it is \ud800\u001b[2J")}
                elif change == "deep":
                    reply["message"] = reply["message"] | {"more": deep}
                elif change == "no message":
                    reply = {"finish_reason": "stop"}
                else:
                    more = {"input_tokens": -(10**9)}
                connection.execute(REPLIES.update().where(REPLIES.c.key == row["key"]).values(reply=reply, **more))
        for calls in (6, 6):  # two are asked again, once
            stage.run()
            assert server.calls == calls
    rewards = read_records(Reward, stage.outputs["rewards"])
    assert [reward.score for reward in rewards] == [quality(one) for each in groups for one in each.trajectories]
    assert all(is_plain(reward.explanation) for reward in rewards)
    assert any("it is ?[2J worth" in reward.explanation for reward in rewards)


def test_where_no_answer_is_of_use_the_same_command_asks_again() -> None:
    answers: list[Answer] = ["no"] * 100
    honest = Judge()
    with Server(lambda body: answers.pop() if answers else honest(body)) as server:
        groups = [group(1, 2), group(2, 2)]
        with pytest.raises(
            UserError, match=r"scored none of 2 groups; .* 'no'; none of its answers is kept"
        ) as problem:
            ruler.judge_all(groups, settings(server, probes=1.0, endpoint={"max_connections": 1}), [])
        assert "run the same command again" in str(problem.value)
        answers.clear()
        calls = server.calls
        [first, second] = ruler.judge_all(groups, settings(server, probes=1.0), [])
        assert server.calls == calls + 6, "an order and two probes for each group: nothing came from the ledger"
    assert None not in (*first.scores.values(), *second.scores.values())


def test_attempts_that_read_alike_and_a_lonely_one_are_not_asked_about(tmp_path: Path) -> None:
    scenario = group(1).scenario
    failed = attempt(scenario, 1, stop="error", error="it broke")
    lonely = Group(scenario, [attempt(scenario, 0, words("quality 0.700")), failed])
    alike = group(2, qualities=[0.5, 0.5, 0.5])
    with Server(Judge()) as server:
        score = {"judges": {"ruler": 1}, "ruler": settings(server, probes=1.0, max_characters=2000).model_dump()}
        stage = Stage(tmp_path / "stage", [lonely, alike], score)
        stage.run()
        assert server.calls == 0
    rewards = read_records(Reward, stage.outputs["rewards"])
    assert [reward.score for reward in rewards] == [None] * 5
    assert [reward.explanation for reward in rewards] == [
        "ruler × 1: not scored: there is nothing to compare: it is the only attempt that did not fail",
        "ruler × 1: the episode failed: it broke",
        *["ruler × 1: not scored: there is nothing to compare: all 3 attempts read alike"] * 3,
    ]
    measured = json.loads(stage.outputs["judge"].read_text())
    assert (measured["judge_groups_alike"], measured["judge_answers"]) == (2, 0)


def test_whether_an_attempt_succeeded_is_known_without_a_judge(tmp_path: Path) -> None:
    from steps.runner import stage as runner
    from steps.score import score as stage_score

    with Server(Judge()) as server:
        fields = {"judges": {"ruler": 1}, "ruler": settings(server).model_dump()}
        stage = Stage(tmp_path / "stage", [group(1, qualities=[0.5, 0.5])], fields)
        paths = stage.inputs | stage.outputs | {"params": stage.folder / "params.yaml"}
        paths["successes"] = tmp_path / "successes.json"
        runner.run(stage_score, {name: str(path) for name, path in paths.items()})
    assert json.loads(paths["successes"].read_text()) == [{group(1).scenario.id: [2, 2]}]


@pytest.mark.parametrize(
    ("message", "finish_reason", "problem"),
    [
        ({"content": None, "refusal": "I \x1b[2Jwill not"}, "stop", "the model refused: 'I [2Jwill not'; it is empty"),
        ({"content": '{"A": {"reason": "long'}, "length", 'it was cut off at max_tokens; it is no JSON: \'{"A": {'),
        ({"content": ""}, "content_filter", "the server's content filter stopped it; it is empty"),
        ({"content": "I had rather not."}, "stop", "it is no JSON: 'I had rather not.'"),
        ({"content": "{}"}, "stop", "attempt A, B is not scored"),
    ],
)
def test_why_an_answer_cannot_be_used_is_said(message: Body, finish_reason: str, problem: str) -> None:
    honest = Judge()
    first = group(1, 2)
    with Server(lambda body: honest(body), finish_reason=finish_reason) as server:
        server.answer = lambda body: (
            message if str(first.scenario.messages[-1]["content"]) in str(body) else honest(body)
        )
        found, other = ruler.judge_all([first, group(2, 2)], settings(server), [])
    assert set(found.scores.values()) == {None}
    assert found.problem.startswith(problem)
    assert None not in other.scores.values(), "an answer that can be used is used, however it ended"
