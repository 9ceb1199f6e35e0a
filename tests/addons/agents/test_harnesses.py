"""The harnesses that people run, as they come from their registries, against a real gateway with a scripted engine."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

from environments.bridges.harness import HARNESSES
from steps.core.errors import UserError
from tests.support.harness_gateway import BROKEN, mending, play
from tests.support.harness_programs import install

EPISODES = int(os.environ.get("HARNESS_EPISODES", "50"))
CHECK = {"check": "python3 check.py", "check_files": {"check.py": "import sums\nassert sums.add(2, 3) == 5\n"}}
# opencode has the model name each session, in a conversation of its own; the others only append to what they sent.
ASIDE = {"opencode": Counter({"sub_agent": EPISODES})}
CALLS = {"opencode": 6}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", HARNESSES)
def test_sessions_are_whole_rows_and_nothing_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads, edits, two calls at once, a call that fails, and words: in one row of a trajectory each."""
    try:
        programs = install(name)
    except UserError as problem:
        pytest.skip(str(problem))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    rows = [
        {"question": f"Mend add in sums.py, task {number}.", "files": {"sums.py": BROKEN}} | CHECK
        for number in range(EPISODES)
    ]
    played, refused = asyncio.run(play(f"harness:{name}", rows, mending, tmp_path))
    forks = Counter(cause for each in played for cause in each.forks)
    counts = {
        "rows": Counter(len(each.trajectory.flatten()) for each in played),
        "calls": Counter(len(each.trajectory.turns) for each in played),
        "forks": dict(forks),
        "ignored": sorted({field for each in played for field in each.ignored}),
        "tokens of the longest prompt": max(len(turn.prompt_ids) for each in played for turn in each.trajectory.turns),
        "median seconds": round(sorted(each.seconds for each in played)[EPISODES // 2], 1),
    }
    print(f"\n{name}: {counts}")
    assert refused == []
    assert [each.result.success for each in played] == [True] * EPISODES
    assert forks == ASIDE.get(name, Counter())
    assert counts["rows"] == {1 + len(ASIDE.get(name, ())): EPISODES}
    assert counts["calls"] == {CALLS.get(name, 5): EPISODES}
