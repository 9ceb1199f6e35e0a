"""The GPUs of this machine, of which each deployed run owns as many as it needs while it runs.

A run holds a lock in .flywheel/cards/ for each of its GPUs, and sees no others (CUDA_VISIBLE_DEVICES): so two runs of
`make ui ARGS="--runs 2"` never meet on one. The kernel gives a lock back however its run ends. On a machine without GPUs,
nothing of this happens. Runs started by hand (`make train`) take no part.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from steps.core import params
from steps.core.errors import UserError
from steps.core.progress import say
from steps.core.section import at
from steps.kit.lock import opened, take
from steps.policy import machine
from steps.project import store

LOCKS = Path(".flywheel/cards")
WAIT = 2.0  # seconds until it is tried again whether another run has given back its GPUs


def needed(file: Path) -> int:
    """How many GPUs of this machine a run of this params.yaml needs: those of its engine or of its update, whichever has
    more. With train.overlap as many as both where this machine has them."""
    run = params.load(file, params.Params)
    others, ahead = machine.gpu_shares(run)
    has_both = at(run, "train.overlap") and run.policy.kind == "vllm" and others + ahead <= len(machine.gpus())
    return others + ahead if has_both else others


def check(root: Path, runs: int) -> None:
    """UserError where there are GPUs, and fewer than so many runs of the folder's params.yaml need at a time."""
    each, cards = needed(root / "params.yaml"), len(machine.gpus())
    if runs > 1 and 0 < cards < runs * each:
        raise UserError(
            f"--runs {runs} needs {runs * each} GPUs, {each} for each run of params.yaml (policy.tensor_parallel, "
            f"update.processes), and this machine has {cards}: give --runs {max(1, cards // each)}"
        )


@contextlib.contextmanager
def owned(root: Path, count: int) -> Iterator[list[str]]:
    """Inside, this process and those that it starts see `count` GPUs that no other deployed run of the project has.

    Waits until so many are free. UserError where there are too few; nothing happens where there are none."""
    cards = machine.gpus()
    if not cards:
        yield []
        return
    if count > len(cards):
        raise UserError(
            f"this run needs {count} GPUs (policy.tensor_parallel, update.processes), and this machine has {len(cards)}"
        )
    folder = root / LOCKS
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        own = taken(folder, cards, count, held)
        if not own:
            say(f"waiting until {count} of {len(cards)} GPUs are free")
        while not own:
            time.sleep(WAIT)
            own = taken(folder, cards, count, held)
        with store.variables(**{machine.VISIBLE: ",".join(own)}):
            yield own


def taken(folder: Path, cards: list[str], count: int, held: contextlib.ExitStack) -> list[str]:
    """The first `count` free cards, whose locks `held` gives back; none where fewer are free."""
    with contextlib.ExitStack() as locks:
        own: list[str] = []
        for card in cards:
            lock = opened(folder / f"{card.replace('/', '-')}.lock")
            locks.callback(os.close, lock)
            if take(lock):
                own.append(card)
            if len(own) == count:
                held.push(locks.pop_all())
                return own
    return []
