"""How gymnasium's environments are won, for the gold player: by rules that people know, by tables of transitions, by search.

None of it looks at the score that gymnasium.py makes of rewards, except that the search in minigrid's worlds
ends where the package pays something. BabyAI brings a bot of its own.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SEARCHED = 5_000  # states of a world that the search looks at
# State -> action -> outcomes: (probability, next state, reward, whether that ends it).
Table = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]


def blackjack(env: Any, seen: Any) -> int:
    """Stand at 17, with a soft hand at 18, and from 13 on where the dealer shows less than 7."""
    total, dealer, is_soft = seen
    return int(total < 18 if is_soft else total < (13 if 2 <= dealer <= 6 else 17))


# The next action of these, by what is seen; they play the episode.
POLICIES: dict[str, Callable[[Any, Any], int]] = {
    "CartPole": lambda env, seen: int(seen[2] + seen[3] / 2 > 0),  # by angle and speed: push to where the pole falls
    "MountainCar": lambda env, seen: 2 if seen[1] >= 0 else 0,  # push to where the car rolls
    "Acrobot": lambda env, seen: 2 if seen[4] < 0 else 0,  # push the lower link against the upper's swing, to pump both
    "Blackjack": blackjack,
}


def way(table: Table, state: int, is_end_enough: bool = False) -> list[int]:
    """The shortest actions to an end with a reward above 0, or to any end; empty where there are none, or chance decides."""
    waiting, seen = deque([(int(state), list[int]())]), {int(state)}
    while waiting:
        here, path = waiting.popleft()
        for action, outcomes in table[here].items():
            if len(outcomes) > 1:
                return []  # left to chance
            [(_, after, reward, is_end)] = outcomes
            if is_end and (reward > 0 or is_end_enough):
                return [*path, action]
            if not is_end and after not in seen:
                seen.add(after)
                waiting.append((after, [*path, action]))
    return []


def bot(env: Any, turns: int) -> list[int]:
    """What BabyAI's own bot does; it plays this world. Empty where it gives up, as in some of the package's debug levels."""
    from minigrid.utils.baby_ai_bot import BabyAIBot

    world, path = env.unwrapped, list[int]()
    try:
        mind, last = BabyAIBot(world), None
        while len(path) < turns:
            last = mind.replan(last)
            path.append(int(last))
            _, reward, terminated, truncated, _ = world.step(last)
            if terminated or truncated:
                return path if reward > 0 else []
    except (AssertionError, AttributeError, IndexError, ValueError):
        pass
    return []


def world_way(env: Any, turns: int) -> list[int]:
    """The shortest actions for which a minigrid world pays something; empty where none were found within `turns`."""
    world = env.unwrapped
    is_alive = hasattr(world, "obstacles")  # they move
    waiting, seen = deque([(world, list[int]())]), {state_of(world)}
    while waiting and len(seen) < SEARCHED:
        here, path = waiting.popleft()
        if len(path) == turns:
            break
        for action in useful(here):
            after = copied(here, is_whole=is_alive or action > here.actions.forward)
            _, reward, terminated, truncated, _ = after.step(action)
            if terminated and reward > 0:
                return [*path, int(action)]
            if not (terminated or truncated) and (state := state_of(after)) not in seen:
                seen.add(state)
                waiting.append((after, [*path, int(action)]))
    return []


def useful(world: Any) -> list[Any]:
    """The actions that could change something here; `done` where the mission is to stand before something."""
    actions, front = world.actions, world.grid.get(*world.front_pos)
    chosen = [actions.left, actions.right]
    if front is None or front.can_overlap():
        chosen.append(actions.forward)
    if world.carrying is None and front is not None and front.can_pickup():
        chosen.append(actions.pickup)
    if world.carrying is not None and front is None:
        chosen.append(actions.drop)
    if front is not None and front.type in ("door", "box"):
        chosen.append(actions.toggle)
    if front is not None and front.type != "wall" and world.mission.startswith("go to"):
        chosen.append(actions.done)
    return chosen


def copied(world: Any, is_whole: bool) -> Any:
    """A world that can be stepped without the first one; with its objects where the step may change one."""
    if is_whole:
        return copy.deepcopy(world)
    made = copy.copy(world)
    made.grid = copy.copy(world.grid)
    made.grid.grid = list(world.grid.grid)
    return made


def state_of(world: Any) -> tuple[Any, ...]:
    held = world.carrying and (world.carrying.type, world.carrying.color)
    return world.grid.encode().tobytes(), tuple(world.agent_pos), int(world.agent_dir), held
