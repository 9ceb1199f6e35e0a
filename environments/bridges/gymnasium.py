"""gymnasium's environments with discrete actions as tasks, minigrid's among them: `task: gymnasium:Taxi-v4`.

What is shown is a text of ours for the environments in `VIEWS`, the environment's own text (`render_mode="ansi"`) where it
has one, and otherwise the observation's numbers. What an episode's rewards come to is in `GOALS`, by family: gymnasium
states no range of them, and a last reward above 0 is a success in some and a failure in others. For another environment
`name?success=10` says from which sum of rewards on an episode is won. Other `key=value` are arguments of `gymnasium.make`:
`gymnasium:FrozenLake-v1?map_name=8x8`. Unlike the package, FrozenLake draws a map from the seed and is not slippery unless
so asked, and CliffWalking begins in a cell that the seed draws: with one beginning there would be nothing to hold out. An
episode has at most 50 turns; `?turns=200` says otherwise. How episodes are won is in gymnasium_solutions.py.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from environments.bridges import gymnasium_solutions as solutions
from environments.bridges.packages import options_of
from environments.bridges.stepped import Game, Generators, Stepped, plain

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
    """The sum of rewards, of which `success` is enough. Where that is not above 0, the environment must have ended the
    episode: rewards that cost something each turn sum up to more the less is done."""

    def goal(rewards: Sequence[float], terminated: bool, turns: int) -> tuple[float, bool]:
        is_won = sum(rewards) >= success and (terminated or success > 0)
        return min(1.0, max(0.0, sum(rewards) / success)) if success > 0 else float(is_won), is_won

    return goal


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

                usual = "8x8" if "8x8" in name else "4x4"
                size = int(str(options.pop("map_name", usual)).partition("x")[0])
                options |= {"desc": generate_random_map(size=size, seed=seed), "map_name": None}
                options.setdefault("is_slippery", False)
            self.env = gymnasium.make(name, disable_env_checker=True, **text_mode(name), **options)
            self.observation, _ = self.env.reset(seed=seed)
        if self.family == "CliffWalking":
            table = self.env.unwrapped.P
            starts = [state for state in table if state not in ends(table)]
            self.env.unwrapped.s = self.observation = Random(f"start {seed}").choice(starts)
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
        """By a rule, by the table of transitions, by BabyAI's bot or by search in minigrid's worlds; None elsewhere. It may
        play this episode."""
        if choose := solutions.POLICIES.get(self.family):
            return self.played(lambda: self.actions()[choose(self.env, self.observation)], self.turns)
        if table := getattr(self.env.unwrapped, "P", None):
            path = solutions.way(table, self.env.unwrapped.s, is_end_enough=self.goal is arrived)
        elif self.family == "MiniGrid":
            with self.generators.swapped():
                is_babyai = hasattr(self.env.unwrapped, "instrs")
                path = (solutions.bot if is_babyai else solutions.world_way)(self.env, self.turns)
        else:
            return None
        return [self.actions()[place] for place in path]

    def take(self, action: str) -> None:
        with self.generators.swapped():
            place = self.actions().index(action)
            self.observation, reward, terminated, truncated, _ = self.env.step(place)
        self.rewards.append(float(reward))
        self.is_over = bool(terminated or truncated)
        self.score, self.is_won = self.goal(self.rewards, bool(terminated), self.turns)


def family_of(name: str) -> str:
    """The name's beginning; BabyAI's environments are minigrid's, and variants such as FrozenLake8x8 are of their kind."""
    family = re.split(r"[-/]", name)[0]
    if family == "BabyAI":
        return "MiniGrid"
    return next((kind for kind in GOALS if family.startswith(kind)), family)


def ends(table: solutions.Table) -> set[int]:
    """States from which an episode cannot begin: that end it, or that no step leads to."""
    outcomes = [outcome for actions in table.values() for each in actions.values() for outcome in each]
    return {after for _, after, _, is_end in outcomes if is_end} | (set(table) - {after for _, after, _, _ in outcomes})


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
    except (gymnasium.error.Error, ImportError) as problem:
        raise ValueError(f"gymnasium has no environment {name}: {problem}") from None
    turns = int(options.pop("turns", min(spec.max_episode_steps or TURNS, TURNS)))
    stated = summed(float(options.pop("success"))) if "success" in options else GOALS.get(family_of(name))
    goal: Goal = stated or reached

    class Gymnasium(Stepped):
        max_turns = turns

        @classmethod
        def open(cls, seed: int) -> Game:
            return GymnasiumGame(name, dict(options), seed, goal, cls.max_turns)

    Gymnasium.task = task
    try:
        actions = Gymnasium.open(0).env.action_space  # pyrefly: ignore[missing-attribute]
    except ModuleNotFoundError:  # said with what brings it
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as problem:
        raise ValueError(f"{task} needs more of gymnasium than is installed: {problem}") from None
    if not isinstance(actions, gymnasium.spaces.Discrete):
        raise ValueError(f"{task}: its actions are {actions}, and only discrete ones can be written as text here")
    if stated is None:
        raise ValueError(
            f"{task} does not say what a success is: gymnasium states no range of its rewards. Name the sum of rewards from "
            f"which on an episode of {turns} turns is won, as in '{task}?success=10'; "
            f"known are {', '.join(GOALS)} and BabyAI"
        )
    return Gymnasium
