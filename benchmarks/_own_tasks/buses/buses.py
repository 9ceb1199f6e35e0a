"""Bus times: which bus can I catch at my stop?"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

from environments import base
from environments.base import Env, Message, Scenario, Split, tool

FIRST = (
    "When is the next {line} from {stop} after {time}?",
    "I am at {stop} at {time} and want the {line}. When does it go?",
    "Next bus {line}, {stop}, from {time} on, please",
    "It's {time}. When can I take line {line} at {stop}?",
)
SECOND = (
    "I will miss the next {line} from {stop} after {time}. When is the one after that?",
    "At {stop}, {time}: not the next {line}, but the second one. When?",
    "It's {time} and I need ten minutes more than the next {line} at {stop} gives me. What time is the following one?",
)
SHARES: dict[Split, float] = {"train": 0.5, "val": 0.2, "test": 0.3}

Timetable = dict[tuple[int, str], list[int]]  # minutes of the day, by line and stop


def minutes(time: str) -> int | None:
    """9:15, 09:15 or 9.15 as minutes of the day."""
    match = re.fullmatch(r"([0-9]{1,2})[:.]([0-9]{2})", time.strip())
    if not match or int(match[1]) > 23 or int(match[2]) > 59:
        return None
    return int(match[1]) * 60 + int(match[2])


def clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


class Buses(Env):
    max_turns = 4
    sources = ("line", "stop")
    openings_repeat = True
    shown = ("departures",)

    @classmethod
    def load(cls, folder: Path) -> Timetable:
        rows = csv.DictReader(io.StringIO(base.read_text(folder / "timetable.csv")))
        return {(int(row["line"]), row["stop"]): [minutes(time) or 0 for time in row["times"].split()] for row in rows}

    @classmethod
    def scenarios(cls, data: Timetable, split: Split, count: int, seed: int) -> list[Scenario]:
        places = [place for place in data if base.split_of(f"{place[0]} {place[1]}", SHARES) == split]
        if count > 3 * len(places):
            raise ValueError(f"{split} has {len(places)} stops of lines, for {3 * len(places)} scenarios at most")
        rng = Random(f"buses {split} {seed}")
        made: dict[str, Scenario] = {}
        while len(made) < count:
            line, stop = rng.choice(places)
            now = rng.randrange(6 * 60, 17 * 60, 5)
            later = [time for time in data[line, stop] if time > now]
            is_second = rng.random() < 0.35
            time = clock(now).lstrip("0") if rng.random() < 0.4 else clock(now)
            text = rng.choice(SECOND if is_second else FIRST).format(line=line, stop=stop, time=time)
            hidden = {
                "line": line,
                "stop": stop,
                "answer": clock(later[is_second]),
                "kind": "second" if is_second else "next",
            }
            scenario = Scenario.make("buses", split, [{"role": "user", "content": text}], hidden)
            made[scenario.id] = scenario
        return list(made.values())

    @tool
    def departures(self, line: int, stop: str, after: str) -> str:
        """The next three buses of a line at a stop.

        Args:
            line: the number of the line
            stop: the name of the stop
            after: the time of day, as in 09:15
        """
        start = minutes(after)
        if start is None:
            return base.error("write the time as in 09:15")
        if (line, stop) not in self.data:
            return base.error("this line does not stop there")
        times = [time for time in self.data[line, stop] if time > start]
        return ", ".join(map(clock, times[:3])) or "no more buses today"

    @tool
    def tell(self, time: str) -> str:
        """Tell the passenger when the bus goes.

        Args:
            time: the time of day, as in 09:15
        """
        if minutes(time) is None:
            return base.error("write the time as in 09:15")
        self.done = True
        return "ok"

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        given = base.accepted(messages, "tell")
        return given is not None and minutes(given["time"]) == minutes(scenario.data["answer"])

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> float:
        if cls.success(scenario, messages):
            return 1
        return -0.5 if base.accepted(messages, "tell") else -0.2
