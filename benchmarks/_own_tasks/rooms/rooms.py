"""Meeting rooms: book the smallest room that fits, has what is needed, and is free at the hour."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal

from environments import base
from environments.base import Env, Message, Outcome, Scenario, Split, tool

KITS = ("projector", "whiteboard", "video")
SYSTEM = "You book meeting rooms. Take the smallest room that has enough seats and is free at the hour."
TEXTS = (
    "We are {people} people in {site} and need a {kit} at {hour}:00.",
    "Please book a room with {kit} in {site}, {hour} o'clock, {people} seats.",
    "{site}, {hour}:00, {people} of us. There must be a {kit}.",
    "Could we get somewhere to meet at {hour}:00? It's for {people} in {site}, with {kit}.",
    "Room request: site {site}; start {hour}:00; seats {people}; equipment {kit}.",
)

Rooms = dict[str, list[dict[str, Any]]]


def fitting(rooms: list[dict[str, Any]], kit: str, people: int) -> list[dict[str, Any]]:
    """Rooms that are large enough and have it, the smallest first."""
    return sorted(
        (room for room in rooms if kit in room["kit"] and room["seats"] >= people),
        key=lambda room: (room["seats"], room["room"]),
    )


class RoomBooking(Env):
    """One request."""

    max_turns = 6
    sources = ("site",)
    openings_repeat = True
    shown = ("find_rooms",)

    @classmethod
    def load(cls, folder: Path) -> Rooms:
        rooms: Rooms = json.loads(base.read_text(folder / "rooms.json"))
        return rooms

    @classmethod
    def scenarios(cls, data: Rooms, split: Split, count: int, seed: int) -> list[Scenario]:
        requests = []
        for site in data:
            if base.split_of(site, {"train": 0.5, "val": 0.2, "test": 0.3}) != split:
                continue
            for kit, people, hour in itertools.product(KITS, range(3, 16), range(8, 18)):
                free = [room for room in fitting(data[site], kit, people) if hour in room["free"]]
                if free:
                    requests.append((site, kit, people, hour, free[0]["room"]))
        if count > len(requests):
            raise ValueError(f"{split} has {len(requests)} requests; {count} are too many")
        rng = Random(f"{seed} {split}")
        made = []
        for site, kit, people, hour, room in rng.sample(requests, count):
            text = rng.choice(TEXTS).format(site=site, kit=kit, people=people, hour=hour)
            messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
            made.append(Scenario.make("rooms", split, messages, {"site": site, "answer": room, "hour": hour}))
        return made

    @tool
    def find_rooms(self, site: str, kit: Literal["projector", "whiteboard", "video"], seats: int) -> str:
        """List a site's rooms with the equipment and at least so many seats, the smallest first.

        Args:
            site: the town
            kit: the equipment that is needed
            seats: how many people come
        """
        if site not in self.data:
            return base.error("there is no such site")
        rows = fitting(self.data[site], kit, seats)
        return "\n".join(
            f"{room['room']} | {room['seats']} seats | free at {', '.join(map(str, room['free']))}" for room in rows
        ) or base.error("no room is large enough")

    @tool
    def book(self, room: str, hour: int) -> str:
        """Book a room for an hour. This ends the request.

        Args:
            room: its name
            hour: when the meeting starts, such as 14
        """
        if room not in {entry["room"] for rooms in self.data.values() for entry in rooms}:
            return base.error("there is no room of this name")
        self.done = True
        return "Booked."

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        return base.accepted(messages, "book") == {"room": scenario.data["answer"], "hour": scenario.data["hour"]}

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> float:
        """1 for the right booking. A wrong one costs half a point, and each error a tenth, up to five."""
        errors = 0.1 * min(base.count_errors(messages), 5)
        if cls.success(scenario, messages):
            return 1 - errors
        return (-0.5 if base.accepted(messages, "book") else 0.0) - errors

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        booked = base.accepted(messages, "book") or {}
        return Outcome(booked.get("room"), scenario.data["answer"], optimal_turns=2)

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        request = str(messages[1]["content"])
        hour = int(re.findall(r"(\d+)(?::00| o'clock)", request)[0])
        if messages[-1]["role"] == "user":
            people = next(int(number) for number in re.findall(r"\d+", request.replace(f"{hour}:00", "", 1)) if number)
            if "o'clock" in request:
                people = int(re.findall(r"(\d+) seats", request)[0])
            site = next(site for site in re.findall(r"[A-Z][a-z]+", request) if site in self.data)
            kit = next(kit for kit in KITS if kit in request)
            return base.use("find_rooms", site=site, kit=kit, seats=people)
        for row in str(messages[-1]["content"]).splitlines():
            name, _, free = row.split(" | ")
            if str(hour) in free.removeprefix("free at ").split(", "):
                return base.use("book", room=name, hour=hour)
        return base.words("There is none.")
