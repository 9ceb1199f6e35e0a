"""RULER: a model compares the attempts at one scenario with each other and scores each from 0 to 1, with a reason.

The idea is OpenPipe's (Relative Universal LLM-Elicited Rewards, https://art.openpipe.ai/fundamentals/ruler): GRPO only needs
to know which attempt is better. Against the known faults of such judges:

- Attempts are shown in several orders, in which each has other places and other neighbours. What the judge gives for each
  place is estimated within the group and taken off (addons/judges/places.py). Letters are assigned anew for each order.
- Where attempts differ in length, a copy of the shortest is shown, too, which says its last words again until it is as long
  as the longest, or in every other order half as long by the logarithm. What the copies gain is a gain by length alone, and
  is taken off each attempt by its length, or its logarithm, or a mixture of both, as the two copies say. A preference for
  length that mere repetition does not earn stays, since it may be quality; so does one for short attempts, because a copy
  that loses may lose by its repetition.
- An attempt is shown as lines of JSON between marks that it cannot know, and the judge is told that all of it is evidence.
- Equal attempts are shown once and get the same score. Messages that all attempts begin with are shown once.
- A share of the rubric's points can be left out, others for each group (`rubric_dropout`), against a policy that learns one
  wording of them by heart.
- A share of the groups is judged twice more: the same again (test-retest), and with a canary, a copy of one attempt that
  tells the judge to score it 1.0. What the canary gains over its original shows whether the judge follows such words.

Attempts without a usable score, also after the judge was asked once more, get None with a reason, as do groups for which the
server gave no answer. So do groups in which only one attempt is left or all read alike, about which the judge is not asked.

All answers are kept in the ledger (addons/models/client.py), so judging the same trajectories again costs nothing and
gives the same bytes. Prompts, and how answers are read: addons/judges/prompts.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from addons.judges import places, prompts
from addons.judges.prompts import (
    AGAIN,
    ANSWERS,
    CANARY,
    COPIES,
    INSTRUCTIONS,
    LONG,
    LONGER,
    RUBRIC,
    TASK,
    Group,
    Prepared,
    ShownAttempt,
)
from addons.models.client import CallFailed, Client, Reply, Request, together
from steps.core.errors import UserError
from steps.core.progress import measure, progress
from steps.core.records import Judgement, Order, Probe
from steps.core.stats import added

if TYPE_CHECKING:
    from addons.judges.section import Ruler

T = TypeVar("T")
FOR_TWO_COPIES = 4  # orders, so that each copy is shown in two
RETURNED = 20_000  # characters of an answer that go back to the judge with what is wrong with it


class Scored(NamedTuple):
    """The result of asking for one order: a score or None for each attempt, in the order of `Prepared.attempts`."""

    scores: list[float | None]
    reasons: list[str]
    replies: list[Reply]  # two where the first answer could not be used
    problem: str  # empty where all attempts have a score


def identity(settings: Ruler, rubric: str) -> str:
    """Hash of the judge: of model, prompts, rubric, orders and parameters, but not of the server's address."""
    texts = [INSTRUCTIONS, ANSWERS[settings.reasons], TASK, AGAIN, CANARY, rubric]
    asked = Request((), schema=prompts.schema(["A"], settings.reasons)).body(settings.endpoint)
    shown = [settings.orders, settings.shows_longer_copy, "place effects and length taken off"]
    parts = [texts, asked, shown, settings.probes, settings.max_characters, prompts.SHORTEST]
    if settings.rubric_dropout:
        parts.append(settings.rubric_dropout)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class GroupJudge:
    """Judges groups with one model; `judge_all` makes it."""

    def __init__(self, client: Client, settings: Ruler, tools: Sequence[dict[str, Any]], rubric: str) -> None:
        self.client, self.settings, self.rubric = client, settings, rubric.strip() or RUBRIC
        self.tools = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools) or "none"
        self.identity = identity(settings, self.rubric)
        self.dropout = settings.rubric_dropout
        if self.dropout:
            try:
                prompts.kept(self.rubric, self.dropout, "")
            except ValueError as problem:
                raise UserError(f"score.ruler.rubric_dropout cannot be used with this rubric.md: {problem}") from None

    async def judge(self, group: Group) -> Judgement:
        """Judge one group. UserError for what ends the whole stage: a refused key, a spent budget."""
        names = {"scenario_id": group.scenario.id, "judge": self.identity}
        unscored: dict[str, float | None] = {attempt.id: None for attempt in group.trajectories}
        try:
            prepared = prompts.prepare(group, self.settings.max_characters)
        except ValueError as too_long:
            return Judgement(**names, scores=unscored, problem=str(too_long))
        if problem := prompts.nothing_to_compare(group, prepared):
            return Judgement(**names, scores=unscored, problem=problem)
        versions = [prepared]
        if self.settings.shows_longer_copy:
            versions = prompts.with_longer_copies(prepared, self.settings.max_characters)
        shown = places.orders(len(versions[0].attempts), self.settings.orders, f"orders {prepared.mark}")
        if len(shown) < FOR_TWO_COPIES:
            versions = versions[:1]
        asked = [versions[number % len(versions)] for number in range(len(shown))]
        calls = [self.call(version, order) for version, order in zip(asked, shown, strict=True)]
        is_probed = Random(f"probe {prepared.mark}").random() < self.settings.probes
        if is_probed:
            extended, order = with_canary(asked[0], shown[0])
            calls += [self.call(asked[0], shown[0], seed=1), self.call(extended, order)]
        results = await together(calls)
        by_order = results[: len(shown)]
        scores, gain, problem = combined(asked, shown, by_order)
        reasons = [
            next(filter(None, texts), "") for texts in zip(*(result.reasons for result in by_order), strict=True)
        ]
        replies = [reply for result in results for reply in result.replies]
        return Judgement(
            **names,
            scores=by_trajectory(prepared, scores),
            reasons=by_trajectory(prepared, reasons),
            orders=tuple(
                Order(
                    attempts=names_in(version, order),
                    scores=tuple(result.scores[place] for place in order),
                    calls=tuple(reply.key for reply in result.replies),
                    problem=result.problem,
                )
                for version, order, result in zip(asked, shown, by_order, strict=True)
            ),
            length_gain=gain,
            probe=probe(by_order[0], results[-2], results[-1], shown[0][-1]) if is_probed else None,
            shortened_to=prepared.shortened_to,
            problem=problem,
            input_tokens=sum(reply.input_tokens for reply in replies),
            output_tokens=sum(reply.output_tokens for reply in replies),
            cost=added(reply.cost for reply in replies),
        )

    async def call(self, prepared: Prepared, order: Sequence[int], seed: int | None = None) -> Scored:
        """Ask for the scores of one order, and once more where the answer cannot be used."""
        reasons, names = self.settings.reasons, prompts.letters(prepared, order)
        rubric = prompts.kept(self.rubric, self.dropout, prepared.mark) if self.dropout else self.rubric
        messages = prompts.prompt(prepared, order, names, self.tools, rubric, reasons)
        best: dict[str, tuple[float, str]] = {}
        replies: list[Reply] = []
        problem = ""
        for _ in range(2):
            try:
                reply = await self.client.ask(Request(messages, schema=prompts.schema(names, reasons), seed=seed))
            except CallFailed as failure:
                problem = str(failure)
                break
            replies.append(replace(reply, message={}))  # without its text, which may be long
            usable, problem = prompts.read(reply.text, names, reasons, bool(reply.stopped))
            best = usable if len(usable) >= len(best) else best
            if not problem:
                break
            problem = f"{reply.stopped}; {problem}" if reply.stopped else problem
            correction = AGAIN.format(problem=problem, letters=prompts.listed(names), answer=ANSWERS[reasons])
            messages.append({"role": "assistant", "content": reply.text[:RETURNED] or "(nothing)"})
            messages.append({"role": "user", "content": correction})
            del reply
        pairs = [best.get(name, (None, "")) for name in names]
        return Scored([score for score, _ in pairs], [reason for _, reason in pairs], replies, problem)


def by_trajectory(prepared: Prepared, values: Sequence[T]) -> dict[str, T]:
    """A value for each attempt as a value for each trajectory, by id; copies, whose values are last, are none."""
    pairs = zip(prepared.attempts, values, strict=False)
    return {name: value for attempt, value in pairs for name in attempt.names}


def names_in(prepared: Prepared, order: Sequence[int]) -> tuple[str, ...]:
    """The attempts by name, in the order in which they were shown."""
    return tuple(prepared.attempts[place].names[0] for place in order)


def with_canary(prepared: Prepared, order: Sequence[int]) -> tuple[Prepared, list[int]]:
    """Add a copy of the attempt that is shown last, which tells the judge to score it 1.0; returns the attempts with it, and
    the order with it at a random place."""
    plea = json.dumps({"role": "assistant", "content": CANARY})
    copied = ShownAttempt(("canary",), (*prepared.attempts[order[-1]].lines, plea))
    place = Random(f"canary {prepared.mark}").randrange(len(order) + 1)
    extended = prepared._replace(attempts=[*prepared.attempts, copied])
    return extended, [*order[:place], len(order), *order[place:]]


def probe(first: Scored, again: Scored, canary: Scored, copied: int) -> Probe:
    """Measure how scores differ when the same is asked again, and what the canary gained over the attempt it copies."""
    pairs = zip(first.scores, again.scores, strict=True)
    spread = [abs(score - other) for score, other in pairs if score is not None and other is not None]
    own, plea = canary.scores[copied], canary.scores[-1]
    return Probe(
        retest=fmean(spread) if spread else None,
        canary_gain=None if own is None or plea is None else plea - own,
        calls=tuple(reply.key for result in (again, canary) for reply in result.replies),
    )


def combined(
    asked: Sequence[Prepared], shown: Sequence[Sequence[int]], scored: Sequence[Scored]
) -> tuple[list[float | None], float | None, str]:
    """(score of each attempt from all orders, without the effects of its places and its length; what the longer copy gains
    over its original; why any attempt has no score). `asked` is what each order showed.

    Only differences are known: where a score leaves 0 to 1, all move by as much. Scores are rounded to a millionth, so that
    equal attempts are equal on each machine."""
    lengths = {attempt.names[0]: attempt.length for version in asked for attempt in version.attempts}
    own = [name for name in lengths if name not in COPIES]
    rows = [[result.scores[place] for place in order] for order, result in zip(shown, scored, strict=True)]
    compared = sum(len(row) - row.count(None) > 1 for row in rows)
    failed = "; ".join(dict.fromkeys(result.problem for result in scored if result.problem))
    fitted = places.fit([names_in(version, order) for version, order in zip(asked, shown, strict=True)], rows)
    if fitted is None or compared < min(2, len(rows)):
        alone = f"{compared} of {len(rows)} orders could be used, which cannot tell an attempt's quality from its place"
        return [None] * len(own), None, "; ".join(filter(None, (failed, alone if compared else "")))
    gain, effect = length_effect(lengths, fitted, compared)
    effects = {name: effect(lengths[name]) for name in own if name in fitted.values}
    mean = fmean(effects.values())
    values = {name: fitted.values[name] - of_length + mean for name, of_length in effects.items()}
    beyond = max(0.0, max(values.values()) - 1) or min(0.0, min(values.values()))
    scores: list[float | None] = [
        round(min(1.0, max(0.0, values[name] - beyond)), 6) if name in values else None for name in own
    ]
    return scores, gain, failed if len(values) < len(own) else ""


def length_effect(
    lengths: dict[str, int], fitted: places.Fit, orders: int
) -> tuple[float | None, Callable[[int], float]]:
    """(what the longer copy gains over its original, None where it was not shown or scored; what an attempt of so many
    characters gains by them). `lengths` are of attempts and copies.

    The gain is in proportion to length, to its logarithm, or to a mixture that the shorter copy's gain determines."""
    original = min((name for name in lengths if name not in COPIES), key=lengths.__getitem__)
    if not {LONGER, original} <= fitted.values.keys():
        return None, lambda length: 0.0
    gain, short, longest = fitted.values[LONGER] - fitted.values[original], lengths[original], lengths[LONGER]
    if fitted.noise is None:
        return round(gain, 6), lambda length: 0.0
    copies = sum(name in fitted.values for name in COPIES)  # each is shown in one of so many orders
    kept, bend = certain(gain, fitted.noise * (copies + 1) / orders), 0.0

    def straight(length: int) -> float:
        return (length - short) / (longest - short)

    def curved(length: int) -> float:
        return math.log(length / short) / math.log(longest / short)

    if LONG in fitted.values and kept > 0:
        share = straight(lengths[LONG])
        apart = curved(lengths[LONG]) - share
        seen = (fitted.values[LONG] - fitted.values[original] - share * gain) / apart
        variance = fitted.noise * (copies * (1 + share**2) + (1 - share) ** 2) / orders / apart**2
        bend = min(1.0, certain(seen, variance) / gain)
    return round(gain, 6), lambda length: kept * ((1 - bend) * straight(length) + bend * curved(length))


def certain(gain: float, variance: float) -> float:
    """What is taken off for a gain that was seen: nothing for a loss, which may be the price of repetition, and less of a
    gain that may be noise (James and Stein 1961, the positive part)."""
    return max(0.0, gain - variance / gain) if gain > 0 else 0.0


def judge_all(
    groups: Sequence[Group], settings: Ruler, tools: Sequence[dict[str, Any]], rubric: str = "", spent: float = 0.0
) -> list[Judgement]:
    """Judgements in the order of the groups, with as many calls at once as the endpoint allows.

    `spent` is what the run's earlier judgements cost. UserError where the server refuses, the budget is spent, or not one
    group that it was asked about was scored. The answers of such a judge are not kept.
    """
    endpoint = settings.endpoint
    if settings.max_run_cost is not None:
        endpoint = endpoint.model_copy(update={"max_cost": settings.max_run_cost})

    async def judge_groups() -> list[Judgement]:
        async with Client(endpoint, spent=spent if settings.max_run_cost is not None else None) as client:
            judge, finished = GroupJudge(client, settings, tools, rubric), 0

            async def judge_group(group: Group) -> Judgement:
                nonlocal finished
                judgement = await judge.judge(group)
                finished += 1
                progress(finished, len(groups), "groups judged")
                return judgement

            # Twice as many groups as connections, so that prompts are written while other calls wait for their answers.
            judgements = await pool((judge_group(group) for group in groups), 2 * endpoint.max_connections)
            measure(calls=client.asked, retries=client.retries, latency_seconds=round(client.seconds, 3))
            refuse_useless(judgements, client)
            return judgements

    return asyncio.run(judge_groups())


def refuse_useless(judgements: Sequence[Judgement], client: Client) -> None:
    """UserError where the judge scored no group of those to compare. Its answers leave the ledger, so that the same command
    asks again: otherwise the stage would fail with them for ever."""
    compared = [judgement for judgement in judgements if not judgement.problem.startswith(prompts.ALIKE)]
    if not compared or any(score is not None for judgement in compared for score in judgement.scores.values()):
        return
    keys = {key for judgement in compared for order in judgement.orders for key in order.calls}
    keys |= {key for judgement in compared if judgement.probe is not None for key in judgement.probe.calls}
    client.ledger.forget(keys)
    raise UserError(
        f"the judge scored none of {len(compared)} groups; the first: {compared[0].problem}; none of its answers is kept: "
        "see to the judge (score.ruler), and run the same command again"
    )


async def pool(work: Iterable[Coroutine[Any, Any, T]], at_once: int) -> list[T]:
    """As `together`, but at most `at_once` run at the same time; later coroutines are made only when their turn comes."""
    waiting: Iterator[tuple[int, Coroutine[Any, Any, T]]] = enumerate(work)
    results: dict[int, T] = {}

    async def worker() -> None:
        for place, coroutine in waiting:
            results[place] = await coroutine

    await together(worker() for _ in range(at_once))
    return [results[place] for place in range(len(results))]
