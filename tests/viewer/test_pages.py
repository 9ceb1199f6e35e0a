"""viewer.app: what its pages say of a small run made here, whom they answer, and what a hostile agent can make of them."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from environments.base import Message, Scenario, Split
from steps.analytics.analysis import Analysis, GroupSummary, Pattern, Percentiles
from steps.core.evaluations import Evaluation
from steps.core.records import Judgement, Order, Reward, Trajectory, Turn, write_records
from steps.core.stats import wilson
from tests.conftest import ROOT
from viewer import app, charts, formats, group, index, pages
from viewer.overview import change, evaluations
from viewer.query import parse

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


def scenario(number: int, split: Split = "train", question: str = "") -> Scenario:
    asked = question or f"How many blue boxes stand in room {number} of the {split} house?\nAnswer with a number."
    messages: list[Message] = [{"role": "system", "content": "You count."}, {"role": "user", "content": asked}]
    return Scenario.make("counting", split, messages, {"answer": number, "room": f"r{number}"})


def trajectory(
    about: Scenario, attempt: int, batch: str, turns: int, error: str = "", greedy: bool = False
) -> Trajectory:
    """Looks into the room again and again, then answers; token i of turn t has a logprob of its own."""
    told, prompt = [], list(range(10, 40))
    for number in range(turns):
        last = number == turns - 1
        sampled = [300 + attempt, 301, 302 + number, 303, 2]
        arguments = {"number": attempt} if last else {"room": f"r{about.data['answer']}"}
        call = {"type": "function", "function": {"name": "answer" if last else "look", "arguments": arguments}}
        answer = {"role": "tool", "name": "look", "content": f"box {attempt}\n" * 12}
        if attempt == 1 and not last:
            answer["content"] = "Error: there is no room 'r9' here"
        told.append(
            Turn(
                prompt_ids=tuple(prompt),
                completion_ids=tuple(sampled),
                logprobs=() if greedy else (-0.01, -0.2, -0.7, -1.5, -6.0),
                message={"role": "assistant", "content": "", "tool_calls": [call]},
                observations=() if last else (answer,),
                finish_reason="stop",
            )
        )
        prompt += [*sampled, *range(50, 60)]
    stop = "error" if error else "done"
    return Trajectory(
        id=f"{batch}-{about.id}-{attempt}",
        scenario_id=about.id,
        attempt=attempt,
        adapter_hash="adapter0",
        turns=tuple(told),
        stop_reason=stop,
        error=error or None,
    )


def reward(one: Trajectory, success: bool) -> Reward:
    parts = {"right": 1.0 if success else -0.5, "turn": -0.1 * len(one.turns)}
    return Reward(
        trajectory_id=one.id,
        scenario_id=one.scenario_id,
        name="rule",
        score=round(sum(parts.values()), 6),
        success=success,
        components=parts,
        explanation="right: the number; or not: who knows; turn: 0.1 for each turn",
    )


def write(folder: Path, told: Sequence[Trajectory], rewards: Sequence[Reward]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_records(told, folder / "trajectories.parquet")
    write_records(rewards, folder / "rewards.parquet")


def write_summary(folder: Path, successes: int, n: int, **fields: Any) -> None:
    """What the stage evaluate writes beside the trajectories of a split."""
    evaluation = Evaluation(
        split="test" if folder.name == "test" else "val",
        adapter_hash=f"adapter{folder.parent.name}",
        n=n,
        success=successes / n,
        ci95=wilson(successes, n),
        reward=0.0,
        turns=2.0,
        tokens=10.0,
        **fields,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(evaluation.text())


def make_run(folder: Path, iterations: int = 2, groups: int = 4, attempts: int = 3, held_out: int = 5) -> Path:
    """A run as training leaves it: rollouts, evaluations (the base's too), a test of the last; attempt 0 succeeds, and in
    evaluation NNN the first NNN + 1 scenarios."""
    train = [scenario(number) for number in range(groups * iterations)]
    val, test = (
        [scenario(number, "val") for number in range(held_out)],
        [scenario(number, "test") for number in range(held_out)],
    )
    (folder / "scenarios").mkdir(parents=True)
    for name, known in (("train", train), ("val", val), ("test", test)):
        write_records(known, folder / "scenarios" / f"{name}.parquet")
    for number in range(iterations + 1):
        name = f"{number:03}"
        told = [trajectory(one, 0, "val", 2, greedy=True) for one in val]
        solved = [reward(one, place <= number) for place, one in enumerate(told)]
        write(folder / name / "evaluation", told, solved)
        write_summary(folder / name / "evaluation", min(number + 1, held_out), held_out)
        if number == iterations:
            told = [trajectory(one, 0, "test", 2, greedy=True) for one in test]
            write(folder / name / "test", told, [reward(one, True) for one in told])
            write_summary(folder / name / "test", held_out, held_out)
        if number:
            drawn = train[(number - 1) * groups : number * groups]
            told = [trajectory(one, attempt, name, 1 + attempt) for one in drawn for attempt in range(attempts)]
            write(folder / name, told, [reward(one, one.attempt == 0) for one in told])
            count = len(told)
            counted = {"collected": count, "trained": count, "quarantined": 0, "without_signal": 0}
            (folder / name / "metrics.json").write_text(json.dumps(counted))
            (folder / name / "fates.json").write_text(json.dumps({one.id: "gradient" for one in told}))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("project") / "run")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A run that the test may change."""
    return make_run(tmp_path / "run", iterations=1)


def browse(run: Path) -> TestClient:
    made = app.application(run, "a-key")
    return TestClient(made, base_url="http://127.0.0.1:8600", headers={"authorization": "Bearer a-key"})


@pytest.fixture(scope="module")
def client(made: Path) -> Iterator[TestClient]:
    with browse(made) as opened:
        yield opened


class Text(HTMLParser):
    """What a person reads of a page, its tags, and its links."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("td", "th", "pre", "p"):
            self.words.append(" ")
        self.links += [str(value) for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def __str__(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def read(client: TestClient, address: str, **query: object) -> str:
    answer = client.get(address, params={name: str(value) for name, value in query.items()})
    assert answer.status_code == 200, answer.text
    return str(Text(answer.text))


# --- The list. 2 iterations x 4 groups x 3 attempts = 24 rollouts, 3 x 5 evaluations, 5 of test: 44 in 28 groups.


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({}, "44 of 44 trajectories in 28 of 28 groups"),
        ({"by": "attempt"}, "44 of 44 trajectories"),
        ({"iteration": "001"}, "17 of 44 trajectories in 9 of 28 groups"),
        ({"kind": "rollout"}, "24 of 44 trajectories in 8 of 28 groups"),
        ({"kind": "test", "iteration": "002"}, "5 of 44 trajectories in 5 of 28 groups"),
        ({"kind": "rollout", "outcome": "success"}, "8 of 44 trajectories in 8 of 28 groups"),
        ({"kind": "evaluation", "outcome": "failure"}, "9 of 44"),  # 4 + 3 + 2
        ({"kind": "rollout", "min": "0.9"}, "8 of 44"),  # 1 - 0.1
        ({"kind": "rollout", "min": "-0.7", "max": "-0.65"}, "8 of 44"),  # -0.5 - 0.2 of attempt 1
        ({"outcome": "unscored"}, "0 of 44"),
        ({"stop": "error"}, "0 of 44"),
        ({"stop": "done", "error": "1"}, "0 of 44"),
        ({"q": "ROOM 3 train"}, "3 of 44 trajectories in 1 of 28 groups"),
        ({"said": "No ROOM 'r9'"}, "8 of 44"),  # attempts 1
        ({"said": '{"number": 2}'}, "8 of 44"),  # attempts 2 answer so
        ({"said": "box 2"}, "8 of 44"),
        ({"said": "nobody said this"}, "0 of 44"),
    ],
)
def test_filters_count_what_they_keep(client: TestClient, query: dict[str, str], count: str) -> None:
    assert count in read(client, "/", **query)
    rows = read(client, "/", part="rows", **query)
    assert count in rows
    assert "Search" not in rows


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ({}, ("000/evaluation", 0)),
        ({"order": "down"}, ("002/test", 4)),
        ({"kind": "rollout", "by": "attempt", "sort": "turns", "order": "down"}, ("001/rollout", 2)),
        ({"kind": "rollout", "by": "attempt", "sort": "reward"}, ("001/rollout", 2)),  # -0.5 - 0.3
        ({"kind": "evaluation", "sort": "success", "order": "down"}, ("000/evaluation", 0)),
        ({"sort": "question"}, ("002/test", 0)),  # of the test house, then train, then val: in room 0
        ({"sort": "tokens", "order": "down"}, ("000/evaluation", 0)),  # 10, and so have all
        ({"sort": "spread", "order": "down"}, ("001/rollout", 0)),  # only rollouts have any
    ],
)
def test_sorts(made: Path, query: dict[str, str], first: tuple[str, int]) -> None:
    row = index.Index(made).search(parse(query))[0]
    number = row.attempts[0].number if query.get("by") else int(re.findall(r"room (\d+)", row.group.question)[0])
    assert (row.group.batch, number) == first


def test_numbers_of_a_line(made: Path) -> None:
    row = index.Index(made).search(parse({"kind": "rollout"}))[0]
    # attempts 0, 1, 2: 1, 2, 3 turns of 5 tokens; rewards 0.9, -0.7, -0.8
    assert [one.turns for one in row.attempts] == [1, 2, 3]
    assert [one.tokens for one in row.attempts] == [5, 10, 15]
    assert [one.reward for one in row.attempts] == [0.9, -0.7, -0.8]
    assert (row.reward, row.spread, row.success) == pytest.approx((-0.2, 1.7, 1 / 3))
    assert (row.turns, row.tokens, row.stop, row.errors) == (2, 10, "done", 0)


def test_what_has_no_value_stands_last(own: Path) -> None:
    (own / "000" / "evaluation" / "rewards.parquet").unlink()
    for order in ("up", "down"):
        rows = index.Index(own).search(parse({"sort": "reward", "order": order}))
        assert {row.group.batch for row in rows[-5:]} == {"000/evaluation"}
        assert all(row.reward is None for row in rows[-5:])


def test_pages_of_a_list(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1, groups=120, attempts=2, held_out=1)
    with browse(run) as client:
        page = client.get("/", params={"kind": "rollout", "page": "2"}).text
        assert page.count('class="open"') == 50
        assert "page 2 of 3" in str(Text(page))
        assert {"/?kind=rollout", "/?kind=rollout&page=3"} <= set(Text(page).links)
        assert client.get("/", params={"kind": "rollout", "page": "3"}).text.count('class="open"') == 20
        assert "page 3 of 3" in read(client, "/", kind="rollout", page="99")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/?min=much", "min=much is no number"),
        ("/?page=0", "page=0 is no page"),
        ("/?sort=colour", "sort=colour is not known: one of iteration, question, reward"),
        ("/?outcome=<b>", "outcome=<b> is not known"),
        ("/group?at=009/rollout&scenario=x", "there is no batch 009/rollout in"),
        ("/group?at=../../x&scenario=x", "there is no batch ../../x in"),
        ("/group?at=001/rollout&scenario=x", "001/rollout holds no attempt at a scenario x"),
        ("/compare?before=001", "there is no batch 001: one of 000/evaluation"),
        ("/compare?change=better", "change=better is not known: one of fixed"),
        ("/compare?scenario=x", "neither 000 validation nor 002 validation holds an attempt"),
    ],
)
def test_bad_addresses_are_one_sentence(client: TestClient, address: str, said: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 400
    assert said in str(Text(answer.text))


# --- A group


@pytest.mark.parametrize("attempt", ["9" * 5000, "²", "-1", "1.0", "x", "99"])
def test_an_attempt_that_is_none_marks_none(client: TestClient, made: Path, attempt: str) -> None:
    address = {"at": "001/rollout", "scenario": scenario(0).id, "attempt": attempt}
    answer = client.get("/group", params=address)
    assert (answer.status_code, "attempt chosen" in answer.text) == (200, False)
    assert "attempt chosen" in client.get("/group", params=address | {"attempt": "1"}).text


def test_a_folder_with_a_strange_digit_is_no_iteration(own: Path) -> None:
    (own / "001").rename(own / "²")
    with browse(own) as client:
        assert client.get("/").status_code == 200


def test_iterations_of_a_longer_run_before_are_not_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=2)
    shown = index.Index(run)
    (tmp_path / "chain.yaml").write_text('iterations:\n  "001": {prev: "000"}\nevaluated: ["000", "001"]\n')
    shown.refresh()
    assert set(shown.batches) == {"000/evaluation", "001/evaluation", "001/rollout"}
    (tmp_path / "chain.yaml").unlink()
    shown.refresh()
    assert "002/rollout" in shown.batches


def test_a_damaged_file_is_a_page_that_says_so(own: Path) -> None:
    """Valid parquet whose JSON has been damaged, then a params.yaml beside the run."""
    address = {"at": "001/rollout", "scenario": scenario(0).id}
    with browse(own) as client:
        (own.parent / "params.yaml").write_text("policy: {base_model: [x")
        answer = client.get("/group", params=address)
        assert (answer.status_code, "params.yaml is not valid YAML" in answer.text) == (400, True)
        (own.parent / "params.yaml").unlink()
        assert client.get("/group", params=address).status_code == 200
        import pyarrow.parquet as pq

        path = own / "001" / "rewards.parquet"
        table = pq.read_table(path)
        place = table.column_names.index("components")
        pq.write_table(table.set_column(place, "components", [['{"right": 1'] * len(table)]), path)
        answer = client.get("/group", params=address)
        assert answer.status_code == 400
        assert "rewards.parquet cannot be read (JSONDecodeError" in str(Text(answer.text))


def test_group_beside_each_other(client: TestClient, made: Path) -> None:
    one = scenario(0)
    page = read(client, "/group", at="001/rollout", scenario=one.id, kind="rollout")
    assert "How many blue boxes stand in room 0 of the train house? Answer with a number." in page
    assert "1 of 8" in page  # of the groups that the filter keeps
    assert page.index("attempt 0") < page.index("attempt 1") < page.index("attempt 2")
    assert 'look(room="r0")' in page
    assert "answer(number=2)" in page
    assert "box 2 … 72 characters" in page  # 12 lines are folded, with the first in sight
    assert "success · +1.100 to the mean · 1 turn ·" in page.replace("\xa0", " ")
    assert "-0.500 right the number; or not: who knows -0.300 turn" in page  # a reason that holds "; " and ": "
    assert "001-" + one.id + "-2" in page
    assert "roomr0" not in page
    assert '"r0"' in page  # what only the environment knows


def test_tokens_have_their_logprobs(client: TestClient) -> None:
    address = f"/group?at=001/rollout&scenario={scenario(0).id}"
    page = client.get(address).text
    # No tokenizer belongs to this run: ids are shown. A log probability of -0.2 is 81.87 %, the second of six bands.
    assert '<span class="t p1" title="log probability -0.2000 = 81.87% · token 301">301 </span>' in page
    assert '<span class="t p5" title="log probability -6.0000 = 0.25% · token 2">2 </span>' in page
    assert len(re.findall(r'title="log probability [^"]+token', page)) == 5 * (1 + 2 + 3)
    assert "10 11 12" not in str(Text(page))
    both = client.get(address + "&tokens=all").text
    assert "10 11 12 13" in str(Text(both))  # the first prompt
    assert str(Text(both)).count("50 51 52 53 54 55 56 57 58 59") == 1 + 2  # what came in between, once each
    assert "log probability -0.2000" not in client.get(address + "&tokens=none").text
    greedy = client.get(f"/group?at=000/evaluation&scenario={scenario(0, 'val').id}").text
    assert 'class="t g" title="no logprob was kept · token 300"' in greedy


@pytest.mark.parametrize(
    ("logprob", "place"),
    [(0.0, 0), (1e-6, 0), (-0.05, 0), (-0.06, 1), (-0.36, 2), (-0.92, 3), (-2.31, 4), (-4.61, 5), (-800.0, 5)],
)
def test_bands(logprob: float, place: int) -> None:
    assert group.band(logprob) == place


def test_text_of_tokens_is_the_tokenizers() -> None:
    words = group.tokenizer(ROOT / "none", index.TrajectoryFile(ROOT, "001", "rollout"))
    assert words is not None  # by params.yaml beside it: the embedded policy
    said = '<tool_call>\n{"name": "search_emails", "arguments": {"keywords": ["Nova"]}}\n</tool_call><|im_end|>'
    ids = words.encode(said).ids
    assert "".join(token.text for token in group.tokens(ids, [-0.1] * len(ids), words)) == said


def test_tokenizer_of_a_hugging_face_name_is_taken_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert group.find("some/model", None, tmp_path) is None
    kept = tmp_path / "models--some--model"
    for commit in ("abc", "def"):
        (kept / "snapshots" / commit).mkdir(parents=True)
        (kept / "snapshots" / commit / "tokenizer.json").write_text("{}")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    assert group.find("some/model", None, tmp_path) == kept / "snapshots" / "abc" / "tokenizer.json"
    assert group.find("some/model", "def", tmp_path) == kept / "snapshots" / "def" / "tokenizer.json"
    assert group.load(str(kept / "snapshots" / "abc" / "tokenizer.json"), 1) is None  # no tokenizer after all


def test_a_prompt_that_does_not_extend_begins_a_row() -> None:
    empty = {"logprobs": [], "message": "{}", "observations": "[]", "finish_reason": "length"}
    rows = [{"prompt_ids": [1, 2], "completion_ids": [3]}, {"prompt_ids": [1, 2, 4], "completion_ids": [5]}]
    told, _ = group.branches([row | empty for row in rows], None)
    assert [(turn.fresh, turn.context, turn.cut) for branch in told for turn in branch.turns] == [
        (False, "1 2", True),
        (True, "1 2 4", True),
    ]


def test_the_turns_of_an_agent_are_a_tree(own: Path) -> None:
    """A sub-agent beside the first conversation, a fork below the turn that it goes back to, and what is not trained on."""
    whole = trajectory(scenario(0), 0, "001", 3)
    first, second, third = whole.turns
    asked = {"context": ({"role": "user", "content": "?"},)}
    turns = (
        first.model_copy(update=asked),
        first.model_copy(update={"prompt_ids": (7, 8), "fork": "sub_agent", **asked}),
        second.model_copy(update={"is_constrained": True}),
        second.model_copy(update={"prompt_ids": (*second.prompt_ids, 9), "fork": "edited", **asked}),
        third,
    )
    forked = whole.model_copy(update={"turns": turns})
    flat = trajectory(scenario(0), 1, "001", 1)
    write(own / "001", [forked, flat], [reward(forked, True), reward(flat, False)])
    (own / "001" / "fates.json").write_text(json.dumps({forked.id: "gradient", flat.id: "zero_variance"}))
    with browse(own) as client:
        html = client.get("/group", params={"at": "001/rollout", "scenario": scenario(0).id}).text
    outline = re.findall(r"<(ol|/ol)\b|turn (\d) ·|fork[^<]*<strong>([a-z ]+)</strong>|not trained on: ([a-z ]+)", html)
    assert ["".join(part) for part in outline] == [
        *("ol", "1", "ol", "edited", "4", "/ol", "3", "constrained", "5", "/ol"),  # the fork stands below turn 1
        *("ol", "sub agent", "2", "/ol"),
        *("ol", "1", "without signal", "/ol"),  # of the other attempt
    ]
    assert "fork after turn 1: <strong>edited</strong>" in html
    assert html.count('class="tokens  dropped"') == 2


def test_attempts_that_sampled_the_same_say_so(own: Path) -> None:
    one = scenario(0)
    told = [
        trajectory(one, 0, "001", 2).model_copy(update={"id": f"t{number}", "attempt": number}) for number in range(3)
    ]
    told[1] = trajectory(one, 1, "001", 2)
    write(own / "001", told, [])
    with browse(own) as client:
        page = client.get("/group", params={"at": "001/rollout", "scenario": one.id}).text
        assert page.count("the same tokens as attempt") == 1
        assert page.index("attempt 2 <") < page.index("the same tokens as attempt 0")


def write_judgement(run: Path, scores: tuple[float | None, ...], reason: str) -> Scenario:
    """A judge's scores for the first group of iteration 001, with its reason for the first attempt."""
    judged = scenario(0)
    ids = tuple(f"001-{judged.id}-{attempt}" for attempt in range(len(scores)))
    judgement = Judgement(
        scenario_id=judged.id,
        judge="j",
        scores=dict(zip(ids, scores, strict=True)),
        reasons={ids[0]: reason},
        orders=(Order(attempts=ids, scores=scores, calls=()),),
    )
    (run / "001" / "judgements.jsonl").write_text(judgement.model_dump_json() + "\n")
    return judged


def test_judges_reasons(own: Path) -> None:
    judged = write_judgement(own, (0.75, None, 0.25), "it counted <b>well</b>")
    with browse(own) as client:
        page = read(client, "/group", at="001/rollout", scenario=judged.id)
        assert "judge 0.75 it counted <b>well</b>" in page
        assert "judge –" in page
        assert "shown in 1 order." in page
        assert "shown in" not in read(client, "/group", at="001/rollout", scenario=scenario(1).id)


def test_next_and_previous_follow_the_filters(client: TestClient, made: Path) -> None:
    query = {"kind": "rollout", "sort": "question", "order": "down"}
    rows = index.Index(made).search(parse(query))
    middle = rows[3].group
    page = client.get("/group", params={"at": middle.batch, "scenario": middle.scenario, **query}).text
    found = {name: re.search(f'rel="{name}" href="([^"]+)"', page) for name in ("prev", "next", "up")}
    assert all(found.values())
    assert rows[2].group.scenario in found["prev"][1]  # pyrefly: ignore[unsupported-operation]
    assert rows[4].group.scenario in found["next"][1]  # pyrefly: ignore[unsupported-operation]
    assert found["up"][1].replace("&amp;", "&") == "/?kind=rollout&sort=question&order=down"  # pyrefly: ignore[unsupported-operation]
    alone = client.get("/group", params={"at": middle.batch, "scenario": middle.scenario, "kind": "test"}).text
    assert 'rel="next"' not in alone


# --- Before and after


def test_compare_takes_the_base_and_the_best(client: TestClient) -> None:
    page = read(client, "/compare")
    # of 5 scenarios the base solves 1, iteration 2 solves 3
    assert "5 of 5 scenarios that both hold · 2 fixed · 1 solved · 2 unsolved" in page
    assert "002 validation: reward" in page
    assert "2 of 5 scenarios" in read(client, "/compare", change="fixed")
    assert "1 of 5 scenarios" in read(client, "/compare", before="001/evaluation", change="fixed")
    assert "2 fixed" in read(client, "/compare", after="002/evaluation", part="rows")
    assert "1 broken · 2 solved" in read(client, "/compare", before="002/evaluation", after="001/evaluation")
    assert "1 of 5 scenarios" in read(client, "/compare", q="room 4")
    assert "0 of 0 scenarios" in read(client, "/compare", before="001/rollout", after="000/evaluation")


def test_compare_side_by_side(client: TestClient) -> None:
    page = client.get("/compare", params={"scenario": scenario(1, "val").id, "change": "fixed"}).text
    assert page.count('<article class="attempt"') == 2
    words = str(Text(page))
    assert words.index("000 validation -0.70") < words.index("002 validation 0.80")
    assert scenario(2, "val").id in re.findall(r'rel="next" href="([^"]+)"', page)[0]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0, 1, "fixed"),
        (1, 0, "broken"),
        (1, 1, "solved"),
        (0.5, 0.5, "solved"),
        (0, 0, "unsolved"),
        (None, 1, "unscored"),
    ],
)
def test_changes(before: float | None, after: float | None, expected: str) -> None:
    assert change(before, after) == expected


# --- Analytics


def test_analytics(client: TestClient) -> None:
    answer = client.get("/analytics")
    page = str(Text(answer.text))
    assert answer.text.count("<figure>") == 8  # success, reward, turns, tokens; actions of three splits; waste
    assert re.search(r"000 validation 5 20% 2% to 74%", page)  # of 1 of 5
    assert "there is no room … here" in page
    found = next(link for link in Text(answer.text).links if "said=" in link)
    assert "8 of 44 trajectories" in str(Text(client.get(found).text))  # attempt 1 of each group
    assert "2 120 100.0%" in re.sub(r"00(\d)", r"\1", page)  # 4 groups x 30 tokens, all with a gradient
    assert "style=" not in answer.text


def test_analytics_of_a_run_that_cannot_be_counted(own: Path) -> None:
    (own / "001" / "fates.json").write_text(json.dumps({"001-x-0": "gradient"}))
    with browse(own) as client:
        assert "waste of 001 is left out" in read(client, "/analytics")


def a_line(iteration: str, split: str, success: float, second: float | None) -> GroupSummary:
    few = Percentiles(p50=10, p90=20, p99=30)
    latency = None if second is None else Percentiles(p50=second, p90=second, p99=second)
    return GroupSummary(
        group=(iteration, split),
        n=10,
        success=success,
        ci95=(success - 0.25, success + 0.25),
        clusters=None,
        reward=success,
        unscored=0,
        failed=0,
        turns=2.0,
        actions={"look": 3, "answer": 1},
        tokens=few,
        latency=latency,
    )


def test_where_the_marks_of_a_chart_stand() -> None:
    lines = (a_line("000", "val", 0.25, None), a_line("001", "val", 0.75, 0.5), a_line("001", "train", 0.5, 1.5))
    found = Analysis(
        source="run",
        by=("iteration", "split"),
        splits=("train", "val"),
        lines=lines,
        total=a_line("all", "", 0.5, 1.0),
        patterns=(),
        waste={},
        notes=(),
    )
    success, *others = charts.curves(found)
    # The plot is 404 wide from 46, for two iterations; 0 to 1 is 176 up to 10.
    assert [(one.name, one.points) for one in success.series] == [
        ("training", "349.0,93.0"),
        ("validation", "147.0,134.5 349.0,51.5"),
    ]
    assert [(dot.low, dot.high) for dot in success.series[1].dots] == [(176.0, 93.0), (93.0, 10.0)]
    assert success.series[1].dots[0].about == "validation 000: 0.250 [0.000, 0.500]"
    assert [chart.title for chart in others] == [
        "Reward, mean",
        "Turns, mean",
        "Sampled tokens, median",
        "Seconds of a turn, median",
    ]
    assert [len(one.dots) for one in others[3].series] == [1, 1]  # of the base none was recorded
    bars = charts.actions(found, "val")
    assert bars is not None
    assert [(bar.about, bar.height) for bar in bars.bars[:2]] == [
        ("000: look 75.0%", 124.5),
        ("000: answer 25.0%", 41.5),
    ]
    assert charts.actions(found, "test") is None
    assert charts.fates(found) is None


def test_the_chart_of_decisions(tmp_path: Path) -> None:
    """A line per kind; an iteration without such a decision has no mark; a summary that is being written is left out."""
    assert charts.decisions(evaluations(tmp_path)) is None
    for number, made in enumerate(({"query": (1, 4)}, {"query": (4, 4), "cite": (1, 2)})):
        write_summary(tmp_path / f"{number:03d}" / "evaluation", 2, 4, decisions=made)
    (tmp_path / "002" / "evaluation").mkdir(parents=True)
    (tmp_path / "002" / "evaluation" / "summary.json").write_text("{")
    chart = charts.decisions(evaluations(tmp_path))
    assert chart is not None
    assert [(series.name, series.points) for series in chart.series] == [
        ("query", "147.0,134.5 349.0,10.0"),
        ("cite", "349.0,93.0"),
    ]
    assert chart.series[0].dots[0].about == "query 000: 1 of 4 right"


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("there is no room … here", {"by": "attempt", "said": "there is no room"}),
        ("… is no date", {"by": "attempt", "said": "is no date"}),
        ("… no …", {}),
    ],
)
def test_errors_lead_to_their_trajectories(text: str, query: dict[str, str]) -> None:
    assert charts.search(Pattern(where="tool", text=text, count=1, episodes=1)) == query


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.0, 1.0], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([39.0, 51.0], ["38", "40", "42", "44", "46", "48", "50", "52"]),
        ([5.0, 5.0], ["4.6", "4.8", "5", "5.2", "5.4"]),
        ([0.0, 0.0], ["-0.4", "-0.2", "0", "0.2", "0.4"]),
    ],
)
def test_ticks_are_round(values: list[float], words: list[str]) -> None:
    scale = charts.Scale.around(values)
    named = [name for _, name in scale.ticks(False)]
    assert 4 <= len(named) <= 9
    assert all(len(name) <= 5 for name in named)
    assert all(charts.TOP <= scale.y(value) <= charts.BOTTOM for value in values)
    if len(set(values)) == 1 or values[0] == 0:
        assert named == words


# --- Files that change


def test_what_changes_on_disk_is_read_again(own: Path) -> None:
    with browse(own) as client:
        assert "27 of 27" in read(client, "/")  # 12 + 10 + 5
        one = scenario(0)
        told = [trajectory(one, attempt, "001", 2, "the server hung up") for attempt in range(2)]
        write(own / "001", told, [])
        assert "17 of 17" in read(client, "/")
        page = read(client, "/", by="attempt", error=1, q="hung up")
        assert "2 of 17" in page
        assert "the server hung up" in page
        assert "2 of 17" in read(client, "/", outcome="unscored")
        write(own / "002", told, [reward(one, True) for one in told])
        assert "19 of 19" in read(client, "/")
        (own / "002" / "trajectories.parquet").unlink()
        assert "17 of 17" in read(client, "/")


def test_a_broken_file_is_named_and_the_rest_is_shown(own: Path) -> None:
    (own / "001" / "trajectories.parquet").write_bytes(b"PAR1 no more")
    with browse(own) as client:
        page = read(client, "/")
        assert "001/trajectories.parquet cannot be read (" in page
        assert "15 of 15" in page


def test_trajectories_without_any_turn(own: Path) -> None:
    one = scenario(0)
    write(own / "001", [trajectory(one, 0, "001", 0, "no room in the context")], [])
    with browse(own) as client:
        assert "1 of 16" in read(client, "/", error=1)
        assert "no room in the context" in read(client, "/group", at="001/rollout", scenario=one.id)
        assert "0 of 16" in read(client, "/", said="box", iteration="001", kind="rollout")


# --- Whom it answers, and what a hostile text can do


def test_what_was_said_is_never_html(tmp_path: Path) -> None:
    run = tmp_path / "run"
    asked = scenario(0, question=HOSTILE)
    (run / "scenarios").mkdir(parents=True)
    write_records([asked], run / "scenarios" / "train.parquet")
    call = {"type": "function", "function": {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE * 5, "raw": HOSTILE}}}
    turn = Turn(
        prompt_ids=(1,),
        completion_ids=(2,),
        logprobs=(-1.0,),
        message={"role": "assistant", "content": HOSTILE, "tool_calls": [call]},
        observations=({"role": "tool", "name": HOSTILE, "content": "Error: " + HOSTILE},),
        finish_reason="stop",
    )
    base = trajectory(asked, 0, "001", 1)
    told = base.model_copy(update={"turns": (turn,), "error": HOSTILE, "stop_reason": "error"})
    told = told.model_copy(update={"id": HOSTILE, "adapter_hash": HOSTILE})
    scored = reward(base, False).model_copy(
        update={"trajectory_id": HOSTILE, "name": HOSTILE, "components": {HOSTILE: 1.0}, "explanation": HOSTILE}
    )
    for folder in ("001", "000/evaluation", "001/evaluation", "001/<b>"):
        write(run / folder, [told], [scored])
    said = Judgement(
        scenario_id=asked.id, judge="j", scores={HOSTILE: 0.5}, reasons={HOSTILE: HOSTILE}, problem=HOSTILE
    )
    (run / "001" / "judgements.jsonl").write_text(said.model_dump_json() + "\n")
    with browse(run) as client:
        seen = 0
        for address in (
            "/",
            "/?by=attempt&sort=stop",
            f"/?q={HOSTILE}&said={HOSTILE}&iteration={HOSTILE}",
            f"/group?at=001/rollout&scenario={asked.id}&tokens=all&q={HOSTILE}",
            "/compare",
            f"/compare?scenario={asked.id}",
            "/analytics",
        ):
            page = client.get(address)
            assert page.status_code == 200, address
            tags = Text(page.text).tags
            assert (tags.count("script"), tags.count("img"), tags.count("b")) == (1, 0, 0), address
            seen += page.text.count("&lt;script&gt;")
        assert seen > 20


def test_a_tokens_text_is_escaped_and_its_line_break_shown() -> None:
    assert str(formats.breaks("<img src=x>\n&")) == '&lt;img src=x&gt;<i class="dim">↵</i>\n&amp;'


def test_answers_no_other_host(client: TestClient) -> None:
    for host in ("127.0.0.1", "127.0.0.1:8600", "localhost:1", "localhost"):
        assert client.get("/", headers={"host": host}).status_code == 200, host
    for host in (
        "evil.example",
        "evil.example:8600",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "[::1]:8600",
        "",
    ):
        answer = client.get("/", headers={"host": host})
        assert answer.status_code == 421, host
        assert "room" not in answer.text


def test_only_reads(client: TestClient) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for address in ("/", "/group", "/compare", "/analytics", "/static/view.js"):
            assert client.request(method, address).status_code == 405, (method, address)


@pytest.mark.parametrize("address", ["/", "/compare", "/analytics", "/static/view.js", "/nothing", "/?min=a"])
def test_headers_of_every_answer(client: TestClient, address: str) -> None:
    known = client.get(address).headers
    policy = known["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert known["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in known


def test_static_files_are_those_of_their_folder(client: TestClient) -> None:
    assert client.get("/static/view.css").status_code == 200
    for address in ("/static/../list.html", "/static/%2e%2e/list.html", "/static/..%2f..%2fview.py", "/static/"):
        assert client.get(address).status_code == 404, address


def test_pages_name_nothing_from_elsewhere() -> None:
    for path in pages.TEMPLATES.rglob("*.*"):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"//[a-z]+\.|https?:|@import|url\(", text), path
        assert not re.search(r"<script(?! src)|\son[a-z]+=|\sstyle=|\|safe", text), path


# --- The command


def test_a_taken_port_is_one_sentence(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert app.main(["--port", str(port), "--run", str(made)]) == 2
    assert f"port {port} on 127.0.0.1 is in use" in capfd.readouterr().err
    assert app.main(["--port", "70000", "--run", str(made)]) == 2
