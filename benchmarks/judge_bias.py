"""What is left of a judge's bias in RULER's scores? Simulated judges like one place, or length, by 0.2, and are else right.

    python -m benchmarks.judge_bias                        # 300 groups of 8 a row: two minutes
    python -m benchmarks.judge_bias --quick                # 30 groups

A row is a bias. By the number of orders in which the attempts are shown: `spread`, the largest distance of scores among
attempts that are equally good, the mean over the groups; and `rank`, the share of pairs that stand in the wrong order or
level, of attempts whose quality is drawn evenly from 0.1 to 0.8. Scores end at 0 and 1, as a judge's do: `at the ends`
draws it from 0 to 1, where a bias leads beyond them. `refused`: the first place is liked, and one order is never answered.
`quality grows with length`: the longer attempt is the better one, and the judge is right about it. `noise`: the judge has no
bias, and errs by 0.05 (standard deviation) in each score; `rms` is the error of a score within its group, and `rms_mean`
that of the plain mean over the orders, so that their ratio is what the estimate costs a judge without a fault. `calls` and
`characters` are of one group, in thousands of characters sent and answered. No real model is asked.
The rows `short attempts` and of length `at the ends` are limits: RULER takes that off in part or not.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Sequence
from itertools import combinations
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from addons.judges import ruler
from addons.judges.prompts import Group
from addons.judges.section import Ruler
from addons.models.client import CallFailed, Reply, Request
from addons.models.section import Endpoint
from benchmarks import _common
from environments.base import Scenario
from steps.core.records import Judgement, Trajectory, Turn

GROUPS, QUICK, SIZE = 300, 30, 8
ALLOWED = 0.01
INSIDE = (0.1, 0.8)  # qualities to which a bias of 0.2 can be added
ORDERS = (1, 2, 3, 4, 8)
DEFAULT: int = Ruler.model_fields["orders"].default
NOISE = 0.05
SHOWN = re.compile(r"^(#[0-9a-f]{12}) attempt ([A-Z]+)\n(.*?)^\1 end$", re.MULTILINE | re.DOTALL)
Bias = Callable[[int, int, float], float]  # (place from 0, number of attempts, length / the longest) -> what it gains
BIASES: dict[str, Bias] = {
    "none": lambda place, n, length: 0.0,
    "first": lambda place, n, length: 0.2 * (place == 0),
    "last": lambda place, n, length: 0.2 * (place == n - 1),
    "middle": lambda place, n, length: 0.2 * (place in ((n - 1) // 2, n // 2)),
    "linear": lambda place, n, length: 0.2 * (1 - place / (n - 1)),
    "length": lambda place, n, length: 0.2 * length,
    "logarithm of length": lambda place, n, length: 0.2 * (1 + math.log(length) / math.log(30)),
}


class Biased:
    """A judge in this process, which reads an attempt's quality, and adds its bias and noise: a client for GroupJudge."""

    def __init__(self, bias: Bias, noise: float = 0.0, refuses: bool = False) -> None:
        self.bias, self.noise, self.refuses = bias, noise, refuses
        self.refused = ""  # the order of a group that it never answers
        self.calls = self.characters = 0

    async def ask(self, request: Request) -> Reply:
        text = str(request.messages[1]["content"])
        self.calls += 1
        self.characters += sum(len(str(message["content"])) for message in request.messages)
        self.refused = self.refused or text
        if self.refuses and text == self.refused:
            raise CallFailed("refused")
        rng, shown = Random(text), [(letter, body) for _, letter, body in SHOWN.findall(text)]
        longest = max(len(body) for _, body in shown)
        scores = {}
        for place, (letter, body) in enumerate(shown):
            quality = float(re.findall(r"quality (\d\.\d+)", body)[0])
            score = quality + self.bias(place, len(shown), len(body) / longest) + rng.gauss(0, self.noise)
            scores[letter] = {"reason": "as it is", "score": min(1.0, max(0.0, score))}
        answer = json.dumps(scores)
        self.characters += len(answer)
        return Reply(str(self.calls), {"content": answer}, "stop", 0, 0, 0.0, 0.0)


def group(number: int, qualities: Sequence[float], lengths: Sequence[int]) -> Group:
    """Attempts that state their quality, in so many characters or a few more."""
    scenario = Scenario.make("toy", "train", [{"role": "user", "content": f"Do {number}."}], {})
    rng, played = Random(f"words {number}"), []
    for place, (quality, length) in enumerate(zip(qualities, lengths, strict=True)):
        text = f"quality {quality:.4f}"
        while len(text) < length:
            text += f" {rng.choice(('find', 'read', 'look', 'note', 'tell'))}{rng.randrange(1000)}"
        turn = Turn(
            prompt_ids=(1,),
            completion_ids=(2,),
            logprobs=(0.0,),
            message={"role": "assistant", "content": text},
            observations=(),
            finish_reason="stop",
        )
        names = {"id": f"{number}/{place}", "scenario_id": scenario.id, "attempt": place, "adapter_hash": "a"}
        played.append(Trajectory(**names, turns=(turn,), stop_reason="done"))
    return Group(scenario, played)


def judged(judge: Biased, attempts: Group, orders: int) -> tuple[Judgement, list[float]]:
    """(the judgement, the score of each attempt). AssertionError where one has none."""
    settings = Ruler(endpoint=Endpoint(model="simulated"), orders=orders, probes=0.0)
    judge.refused = ""
    judgement = asyncio.run(ruler.GroupJudge(judge, settings, [], "").judge(attempts))  # pyrefly: ignore[bad-argument-type]
    scores = [judgement.scores[played.id] for played in attempts.trajectories]
    assert None not in scores, judgement.problem
    return judgement, [score for score in scores if score is not None]


def wrong(qualities: Sequence[float], scores: Sequence[float]) -> float:
    """The share of pairs of different quality whose scores are level or the other way round."""
    pairs = [pair for pair in combinations(range(len(scores)), 2) if qualities[pair[0]] != qualities[pair[1]]]
    return fmean((qualities[a] - qualities[b]) * (scores[a] - scores[b]) <= 0 for a, b in pairs)


def drawn(number: int, size: int, by_length: bool, ends: tuple[float, float] = INSIDE) -> tuple[Group, list[float]]:
    """A group of different quality, and the qualities; `by_length`: the longer, the better."""
    rng = Random(f"drawn {number}")
    qualities = [round(rng.uniform(*ends), 4) for _ in range(size)]
    lengths = [rng.randrange(50, 1500) for _ in range(size)]
    if by_length:
        qualities, lengths = sorted(qualities), sorted(lengths)
    return group(number, qualities, lengths), qualities


class Case(NamedTuple):
    """A row's judge and attempts."""

    name: str
    bias: Bias
    refuses: bool = False
    by_length: bool = False
    ends: tuple[float, float] = INSIDE


CASES = [
    *(Case(name, bias) for name, bias in BIASES.items()),
    Case("refused", BIASES["first"], refuses=True),
    Case("quality grows with length", BIASES["none"], by_length=True),
    Case("short attempts", lambda place, n, length: 0.2 * (1 - length)),
    *(Case(f"{name}, at the ends", bias, ends=(0.0, 1.0)) for name, bias in BIASES.items() if name != "none"),
]


def measure(case: Case, groups: int, size: int) -> dict[str, Any]:
    """A row: spread and rank by the number of orders, and what a group costs."""
    row: dict[str, Any] = {"name": case.name}
    for orders in ORDERS[2 if case.refuses else 0 :]:  # of two orders with one refused, no group is scored
        judge, spreads, ranks = Biased(case.bias, refuses=case.refuses), [], []
        for number in range(groups):
            rng = Random(f"equal {number}")
            equal = group(number, [0.5] * size, [rng.randrange(50, 1500) for _ in range(size)])
            scores = judged(judge, equal, orders)[1]
            spreads.append(max(scores) - min(scores))
            made, qualities = drawn(number, size, case.by_length, case.ends)
            ranks.append(wrong(qualities, judged(judge, made, orders)[1]))
        row |= {f"spread_{orders}": round(fmean(spreads), 4), f"rank_{orders}": round(fmean(ranks), 4)}
        row[f"calls_{orders}"] = judge.calls / groups / 2
        row[f"characters_{orders}"] = round(judge.characters / groups / 2 / 1000, 1)
    return row | {"ratio": round(max(row[f"{what}_{DEFAULT}"] for what in ("spread", "rank")) / ALLOWED, 3)}


def noise(groups: int, size: int) -> dict[str, Any]:
    """The row of a judge without a bias: what the estimate costs."""
    row: dict[str, Any] = {"name": "noise"}
    for orders in ORDERS:
        judge = Biased(BIASES["none"], NOISE)
        ours, means = list[float](), list[float]()
        for number in range(groups):
            made, qualities = drawn(number, size, by_length=False, ends=(0.25, 0.75))
            judgement, scores = judged(judge, made, orders)
            by_order = [dict(zip(order.attempts, order.scores, strict=True)) for order in judgement.orders]
            plain = [fmean(float(given[played.id] or 0) for given in by_order) for played in made.trajectories]
            for kept, given in ((ours, scores), (means, plain)):
                offsets = [score - quality for score, quality in zip(given, qualities, strict=True)]
                kept += [(offset - fmean(offsets)) ** 2 for offset in offsets]
        row |= {f"rms_{orders}": round(fmean(ours) ** 0.5, 4), f"rms_mean_{orders}": round(fmean(means) ** 0.5, 4)}
    return row | {"ratio": round(row[f"rms_{DEFAULT}"] / row[f"rms_mean_{DEFAULT}"], 3)}


def main() -> None:
    parser = _common.parser("judge_bias", __doc__, f"{QUICK} groups in place of {GROUPS}")
    parser.add_argument("--groups", type=int, help=f"default: {GROUPS}; quick: {QUICK}")
    parser.add_argument("--attempts", type=int, default=SIZE, help="of a group")
    options = parser.parse_args()
    usual = QUICK if options.quick else GROUPS
    groups = options.groups or usual
    rows = _common.begin("judge_bias", options, groups / usual)
    for case in CASES:
        rows.add(measure(case, groups, options.attempts))
    rows.add(noise(groups, options.attempts))


if __name__ == "__main__":
    _common.command(main)
