"""Makes the data sets of conversations: scenarios, demonstrations, preferences and a regression set; the rest is
quarantined.

`build` is a function of its arguments alone: of all conversations that were ever ingested, whatever the order and the number
of ingestions. A conversation goes through these in turn:

1. Consent: without it, it is quarantined and not kept.
2. Doubles: of conversations with the same messages the one with most feedback is used.
3. Its scenario, which the task makes of it (`Env.from_conversation`), and the check against held-out scenarios
   (addons/production/traces/heldout.py), which blocks all of it.
4. Where feedback calls it bad, its scenario goes to the regression set for the share `regression` of scenarios, by a hash
   of their source, and nothing of it or like it is trained on. Other scenarios are trained on, each once: exact doubles,
   near ones (of the same hidden data) and those that the task draws itself are left out.
5. Where feedback calls it good, it is a demonstration up to that answer. A correction makes a pair of preferences.

What makes none of these is quarantined with the reason. "Good" is a score of at least 0.7, "bad" one of at most 0.3; of
several on one answer the last counts, and a corrected answer without a score is bad.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.production.traces.heldout import HeldOut, NearTexts, plain, user_texts
from addons.production.traces.records import Conversation, Unreadable, content_hash, reason
from environments.base import Message
from steps.data.contamination import sources

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.params import Scenarios

GOOD, BAD = 0.7, 0.3
Row = dict[str, Any]


class Task(NamedTuple):
    """What ingestion needs of a task."""

    env: type[Env]
    name: str
    data: Any
    train: Sequence[Scenario]  # that it draws by itself
    held: Sequence[Scenario]  # of val and test, as many as it has
    params: Scenarios


class DataSets(NamedTuple):
    """What is made of conversations: the rows of each file, and why some became no scenario."""

    scenarios: list[Row]
    demonstrations: list[Row]
    preferences: list[Row]
    regression: list[Row]
    quarantine: list[Unreadable]
    no_scenario: dict[str, int]  # of conversations that were used otherwise, by reason


class Judged(NamedTuple):
    """A conversation with what feedback says of its answers."""

    conversation: Conversation
    good: tuple[int, ...]  # places of answers
    bad: tuple[int, ...]
    corrections: Mapping[int, Message]


class Case(NamedTuple):
    """A judged conversation, with its scenario or the reason why it has none."""

    judged: Judged
    scenario: Scenario | None
    problem: str


def build(conversations: Sequence[Conversation], task: Task, regression: float) -> DataSets:
    """The data sets of these conversations, which are masked and in their order. `regression`: the share of bad ones'
    scenarios that are only checked."""
    quarantine: list[Unreadable] = []
    held_out = HeldOut(task.env, task.name, task.held, task.train, task.params)
    cases = []
    for judged in _distinct(conversations, quarantine):
        case = Case(judged, *scenario_of(judged, task))
        source = judged.conversation.key
        if case.scenario is not None and case.scenario.split != "train":
            quarantine.append(Unreadable(source, f"held out: its scenario is of the split {case.scenario.split}"))
        elif other := held_out.conflict(case.scenario, judged.conversation.messages):
            quarantine.append(Unreadable(source, f"held out, by {other}"))
        else:
            cases.append(case)
    made = DataSets([], [], [], [], quarantine, {})
    checked = list(_regression(cases, task, regression))
    rows: dict[str, Row] = {}
    for case in checked:
        row = scenario_row(case, "test")
        if row["id"] in rows:
            quarantine.append(Unreadable(row["source"], f"a double of the regression scenario {row['id']}"))
        rows.setdefault(row["id"], row)
    made.regression.extend(rows.values())
    beside = HeldOut(task.env, task.name, [case.scenario for case in checked if case.scenario], task.train, task.params)
    kept = set(map(id, checked))
    learnt: list[Case] = []
    for case in cases:
        if id(case) in kept:
            continue
        if other := beside.conflict(case.scenario, case.judged.conversation.messages) if checked else "":
            quarantine.append(Unreadable(case.judged.conversation.key, f"like the regression set, by {other}"))
        else:
            learnt.append(case)
    _learn(learnt, task, made)
    return made._replace(quarantine=sorted(set(quarantine)), no_scenario=dict(sorted(made.no_scenario.items())))


def _distinct(conversations: Sequence[Conversation], quarantine: list[Unreadable]) -> Iterator[Judged]:
    """The consented conversations with an answer, each once, in their order."""
    chosen: dict[str, Conversation] = {}
    for conversation in conversations:
        if not conversation.consent:
            quarantine.append(Unreadable(conversation.key, "no consent"))
        elif all(message["role"] != "assistant" for message in conversation.messages):
            quarantine.append(Unreadable(conversation.key, "no answer of the assistant"))
        else:
            name = content_hash(conversation.messages)
            if name in chosen:
                better, lesser = chosen[name], conversation
                if len(lesser.feedback) > len(better.feedback):
                    better, lesser = lesser, better
                chosen[name] = better
                quarantine.append(Unreadable(lesser.key, f"the same messages as {better.key}"))
            else:
                chosen[name] = conversation
    yield from map(judge, chosen.values())


def judge(conversation: Conversation) -> Judged:
    """What feedback says of a conversation's answers; feedback on the whole counts for the last one."""
    answers = [place for place, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    scores: dict[int, float] = {}
    corrections: dict[int, Message] = {}
    for entry in conversation.feedback:  # in the order of their time
        place = conversation.responses.get(entry.response, answers[-1])
        if entry.correction is not None:
            corrections[place] = entry.correction
        if entry.score is not None:
            scores[place] = entry.score
        elif entry.correction is not None:
            scores[place] = 0.0
    good = tuple(place for place, score in sorted(scores.items()) if score >= GOOD)
    bad = tuple(place for place, score in sorted(scores.items()) if score <= BAD)
    return Judged(conversation, good, bad, corrections)


def opinion(conversation: Conversation) -> str:
    """What people said of a conversation: corrected, bad, good, or nothing."""
    if not conversation.feedback or all(message["role"] != "assistant" for message in conversation.messages):
        return "nothing"
    judged = judge(conversation)
    return "corrected" if judged.corrections else "bad" if judged.bad else "good" if judged.good else "nothing"


def scenario_of(judged: Judged, task: Task) -> tuple[Scenario | None, str]:
    """(the scenario that the task makes of a conversation, why it makes none). The right answer is the last correction, or
    else the last answer where feedback calls it good and none bad."""
    conversation, answer = judged.conversation, None
    if judged.corrections:
        place = max(judged.corrections)
        answer = task.env.corrected(conversation.messages[place], judged.corrections[place])
    elif judged.good and not judged.bad:
        answer = conversation.messages[judged.good[-1]]
    fields = {"messages": list(conversation.messages), "answer": answer, "metadata": dict(conversation.metadata)}
    try:
        scenario = task.env.from_conversation(task.data, fields)
        sources(scenario, task.name, task.env.sources)
        return scenario, ""
    except Exception as problem:  # hostile content, which a task need not foresee
        return None, f"no scenario: {reason(problem)}"


def _regression(cases: Sequence[Case], task: Task, share: float) -> Iterator[Case]:
    """The bad cases whose scenario is only checked: a hash of its source decides, and nothing that the task trains on."""
    own = HeldOut(task.env, task.name, task.train, (), task.params)
    for case in cases:
        if case.scenario is None or not case.judged.bad:
            continue
        keys: list[Any] = [*sources(case.scenario, task.name, task.env.sources)]
        keys = keys or [plain(" ".join(user_texts(case.scenario.messages)))]
        place = int(hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:8], 16) / 16**8
        if place < share and not own.conflict(case.scenario, ()):
            yield case


def _learn(cases: Sequence[Case], task: Task, made: DataSets) -> None:
    """Add the rows of what is trained on."""
    wording = {id(case): plain(" ".join(user_texts(case.scenario.messages))) for case in cases if case.scenario}
    near, exact = NearTexts(rarity=wording.values()), dict[tuple[str, str], str]()
    for scenario in task.train:
        group, text = _data(scenario), plain(" ".join(user_texts(scenario.messages)))
        exact[group, text] = f"the task's own scenario {scenario.id}"
        near.add(text, exact[group, text], group)
    seen: set[str] = set()
    for case in cases:
        used, problems = False, []
        if case.scenario is not None:
            group, text = _data(case.scenario), wording[id(case)]
            double = exact.get((group, text))
            nearly = None if double or task.env.openings_repeat else near.find(text, group)
            if double or nearly:
                problems.append(f"{'a double' if double else 'nearly a double'} of {double or nearly}")
            else:
                exact[group, text] = case.judged.conversation.key
                near.add(text, case.judged.conversation.key, group)
                made.scenarios.append(scenario_row(case, "train"))
                used = True
        else:
            problems.append(case.problem)
        for row in _demonstrations(case.judged):
            used |= _add(made.demonstrations, row, seen)
        for row in _preferences(case.judged, task):
            if row["chosen"] == row["rejected"]:
                problems.append("its correction is the answer itself")
            else:
                used |= _add(made.preferences, row, seen)
        if not used:
            why = "; ".join(problems or ["nothing in it is new"])
            made.quarantine.append(Unreadable(case.judged.conversation.key, why))
        elif case.scenario is None:
            made.no_scenario[case.problem] = made.no_scenario.get(case.problem, 0) + 1


def _demonstrations(judged: Judged) -> Iterator[Row]:
    """The conversation up to the last good answer, where none before it is bad."""
    if not judged.good or any(place < judged.good[-1] for place in judged.bad):
        return
    conversation = judged.conversation
    row: Row = {"messages": list(conversation.messages[: judged.good[-1] + 1])}
    yield row | ({"tools": list(conversation.tools)} if conversation.tools else {}) | {"source": conversation.key}


def _preferences(judged: Judged, task: Task) -> Iterator[Row]:
    """A pair for each correction: the answer that was right, and the one that was given."""
    conversation = judged.conversation
    for place, correction in sorted(judged.corrections.items()):
        rejected = conversation.messages[place]
        chosen = task.env.corrected(rejected, correction)
        row = {"messages": list(conversation.messages[:place]), "chosen": chosen, "rejected": rejected}
        yield row | ({"tools": list(conversation.tools)} if conversation.tools else {}) | {"source": conversation.key}


def _add(rows: list[Row], row: Row, seen: set[str]) -> bool:
    """Add a row that is not there yet from another conversation; whether it was added."""
    essence = json.dumps({name: value for name, value in row.items() if name != "source"}, sort_keys=True)
    if essence in seen:
        return False
    seen.add(essence)
    rows.append(row)
    return True


def scenario_row(case: Case, split: str) -> Row:
    """A scenario's own fields, and its source."""
    from environments.base import Scenario

    assert case.scenario is not None
    scenario = case.scenario
    made = Scenario.make(scenario.task, "test" if split == "test" else "train", scenario.messages, scenario.data)
    return made.model_dump(mode="json") | {"source": case.judged.conversation.key}


def _data(scenario: Scenario) -> str:
    return json.dumps(scenario.data, sort_keys=True, ensure_ascii=False)
