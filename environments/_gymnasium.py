"""gymnasium's environments with discrete actions as tasks, minigrid's among them: `task: gymnasium:Taxi-v4`.

What is shown is a text of ours for the environments in `VIEWS`, the environment's own text (`render_mode="ansi"`) where it
has one, and otherwise the observation's numbers. What an episode's rewards come to is in `GOALS`, by family: gymnasium
states no range of them, and a last reward above 0 is a success in some and a failure in others. For another environment
`name?success=10` says from which sum of rewards on an episode is won. Other `key=value` are arguments of `gymnasium.make`:
`gymnasium:FrozenLake-v1?map_name=8x8`. Unlike the package, FrozenLake draws a map from the seed and is not slippery unless
so asked: with one map there would be nothing to hold out.
"""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from environments._packages import options_of
from environments._stepped import Game, Generators, Stepped, plain

TURNS = 50  # most turns of an episode
PLACES = ("red", "green", "yellow", "blue")
ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Blackjack": ("stick", "hit"),
    "MiniGrid": ("left", "right", "forward", "pick up", "drop", "toggle", "done"),
}
RULES = {
    "FrozenLake": "Walk on a frozen lake from S to G. H is a hole, F is ice, and * is you.",
    "Taxi": "Drive a taxi to the passenger, pick the passenger up, drive to the destination, and drop the passenger off. "
    "Row 0 is in the north, column 0 in the west. Walls (|) between cells cannot be crossed.",
    "CliffWalking": "Walk to T. C is a cliff, x is you.",
    "CartPole": "Keep the pole on the cart upright: 0 pushes it to the left, 1 to the right. The numbers are the place "
    "and the speed of the cart, and the angle and the speed of the pole; to the right they are above 0.",
    "Blackjack": "Get nearer to 21 than the dealer, and not above.",
    "MiniGrid": "Reach what the mission names. Two letters are a cell: WG is a wall, GG the goal, and >>, VV, << or ^^ is "
    "you, by the way you look.",
}


def reached(rewards: Sequence[float], terminated: bool, turns: int) -> tuple[float, bool]:
    """Of rewards that are above 0 where the goal is reached, which ends the episode."""
    return min(1.0, max(0.0, rewards[-1])) if terminated else 0.0, terminated and rewards[-1] > 0


def arrived(rewards: Sequence[float], terminated: bool, turns: int) -> tuple[float, bool]:
    """Of rewards that cost something each turn, until the goal ends the episode: the share that is left of one a turn."""
    return max(0.0, 1 + sum(rewards) / turns) if terminated else 0.0, terminated


def lasted(rewards: Sequence[float], terminated: bool, turns: int) -> tuple[float, bool]:
    """Of a reward of 1 for each turn before the failure that ends the episode: the share of all turns."""
    return sum(rewards) / turns, len(rewards) == turns and not terminated


# (rewards, whether the environment ended the episode, most turns of an episode) -> (score from 0 to 1, whether it is won)
Goal = Callable[[Sequence[float], bool, int], tuple[float, bool]]
GOALS: dict[str, Goal] = {
    "FrozenLake": reached,
    "Taxi": reached,
    "MiniGrid": reached,
    "Blackjack": reached,
    "CliffWalking": arrived,
    "CartPole": lasted,
}


def summed(success: float) -> Goal:
    """The sum of rewards, of which `success` is enough."""
    return lambda rewards, terminated, turns: (
        min(1.0, max(0.0, sum(rewards) / success)) if success > 0 else float(sum(rewards) >= success),
        sum(rewards) >= success,
    )


# State -> action -> outcomes: (probability, next state, reward, whether that ends it).
Table = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]


def taxi(env: Any) -> str:
    row, column, passenger, destination = env.unwrapped.decode(env.unwrapped.s)
    stands = {
        name: f"row {place[0]}, column {place[1]}" for name, place in zip(PLACES, env.unwrapped.locs, strict=True)
    }
    where = "in the taxi" if passenger == len(PLACES) else f"at {PLACES[passenger]} ({stands[PLACES[passenger]]})"
    target = PLACES[destination]
    return f"Taxi: row {row}, column {column}. Passenger: {where}. Destination: {target} ({stands[target]})."


def frozen_lake(env: Any) -> str:
    board = [[cell.decode() for cell in row] for row in env.unwrapped.desc]
    row, column = divmod(env.unwrapped.s, len(board[0]))
    board[row][column] = "*"
    return "\n".join(" ".join(cells) for cells in board)


VIEWS: dict[str, Callable[[Any], str]] = {
    "FrozenLake": frozen_lake,
    "Taxi": taxi,
    "MiniGrid": lambda env: f"Mission: {env.unwrapped.mission}.\n{env.unwrapped.pprint_grid()}",
}


class GymnasiumGame(Game):
    def __init__(self, name: str, options: dict[str, Any], seed: int, goal: Goal, turns: int) -> None:
        import gymnasium

        self.family, self.goal, self.turns = family_of(name), goal, turns
        self.rewards: list[float] = []
        self.generators = Generators(seed)
        with self.generators.swapped(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.family == "FrozenLake" and "desc" not in options:
                from gymnasium.envs.toy_text.frozen_lake import generate_random_map

                size = int(str(options.pop("map_name", "4x4")).partition("x")[0])
                options |= {"desc": generate_random_map(size=size, seed=seed), "map_name": None}
                options.setdefault("is_slippery", False)
            self.env = gymnasium.make(name, disable_env_checker=True, **text_mode(name), **options)
            self.observation, _ = self.env.reset(seed=seed)
        self.rules = f"{RULES.get(self.family, f'This is {name} of gymnasium.')} Call act with one action a turn."

    def show(self) -> str:
        if view := VIEWS.get(self.family):
            return view(self.env)
        if self.env.render_mode == "ansi":
            return plain(str(self.env.render()))
        return f"Observation: {self.observation}"

    def actions(self) -> list[str]:
        names = ACTIONS.get(self.family, ())
        count = int(self.env.action_space.n)
        return list(names) if len(names) == count else [str(number) for number in range(count)]

    def solution(self) -> list[str] | None:
        """From the table of transitions, where the environment has one and nothing is left to chance; a pole is balanced by
        its angle and its speed. It plays this episode."""
        if self.goal is lasted:
            path: list[str] = []
            while not self.is_over and len(path) < self.turns:
                _, _, angle, speed = self.observation
                path.append("1" if angle + speed / 2 > 0 else "0")
                self.take(path[-1])
            return path
        table = getattr(self.env.unwrapped, "P", None)
        is_end_enough = self.goal is arrived
        return way(table, self.env.unwrapped.s, self.actions(), is_end_enough) if table else None

    def take(self, action: str) -> None:
        with self.generators.swapped():
            place = self.actions().index(action)
            self.observation, reward, terminated, truncated, _ = self.env.step(place)
        self.rewards.append(float(reward))
        self.is_over = bool(terminated or truncated)
        self.score, self.is_won = self.goal(self.rewards, bool(terminated), self.turns)


def family_of(name: str) -> str:
    """The name's beginning; BabyAI's environments are minigrid's."""
    family = re.split(r"[-/]", name)[0]
    return "MiniGrid" if family == "BabyAI" else family


def way(table: Table, state: int, names: list[str], is_end_enough: bool = False) -> list[str]:
    """The shortest actions to an end with a reward above 0, or to any end; empty where there are none, or chance decides."""
    waiting, seen = deque([(int(state), list[str]())]), {int(state)}
    while waiting:
        here, path = waiting.popleft()
        for action, outcomes in table[here].items():
            if len(outcomes) > 1:
                return []  # left to chance
            [(_, after, reward, is_end)] = outcomes
            if is_end and (reward > 0 or is_end_enough):
                return [*path, names[action]]
            if not is_end and after not in seen:
                seen.add(after)
                waiting.append((after, [*path, names[action]]))
    return []


def text_mode(name: str) -> dict[str, Any]:
    """The argument of gymnasium.make for environments that can show themselves as text."""
    from gymnasium.envs.registration import load_env_creator, spec

    point = spec(name).entry_point
    kind = load_env_creator(point) if isinstance(point, str) else point
    return {"render_mode": "ansi"} if "ansi" in getattr(kind, "metadata", {}).get("render_modes", ()) else {}


def make(name: str) -> type[Stepped]:
    """The task of an environment. ValueError where gymnasium has none of this name, its actions are not discrete, or nobody
    says what a success is."""
    import gymnasium

    task = f"gymnasium:{name}"
    name, options = options_of(name)
    if family_of(name) == "MiniGrid":
        import minigrid  # noqa: F401  (registers its environments)
    try:
        spec = gymnasium.spec(name)
    except gymnasium.error.Error as problem:
        raise ValueError(f"gymnasium has no environment {name}: {problem}") from None
    stated = summed(float(options.pop("success"))) if "success" in options else GOALS.get(family_of(name))
    goal: Goal = stated or reached

    class Gymnasium(Stepped):
        max_turns = min(spec.max_episode_steps or TURNS, TURNS)

        @classmethod
        def open(cls, seed: int) -> Game:
            return GymnasiumGame(name, dict(options), seed, goal, cls.max_turns)

    Gymnasium.task = task
    try:
        actions = Gymnasium.open(0).env.action_space  # type: ignore[attr-defined]
    except gymnasium.error.DependencyNotInstalled as problem:
        raise ValueError(f"{task} needs more of gymnasium than is installed: {problem}") from None
    if not isinstance(actions, gymnasium.spaces.Discrete):
        raise ValueError(f"{task}: its actions are {actions}, and only discrete ones can be written as text here")
    if stated is None:
        raise ValueError(
            f"{task} does not say what a success is: gymnasium states no range of its rewards. Name the sum of rewards from "
            f"which on an episode of {min(spec.max_episode_steps or TURNS, TURNS)} turns is won, as in '{task}?success=10'; "
            f"known are {', '.join(GOALS)} and BabyAI"
        )
    return Gymnasium
