"""Whether good policies are paid more than bad ones in environments of other packages, and MCP servers work as they come."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import catalogue, mcp_servers
from benchmarks.catalogue import Entry
from tests.conftest import ROOT, run

SHORT = (
    "gymnasium:CartPole-v1",
    "gymnasium:CliffWalking-v1",
    "gymnasium:Taxi-v4",
    "gymnasium:MiniGrid-Dynamic-Obstacles-Random-5x5-v0",
    "gymnasium:BabyAI-PutNextLocal-v0",
    "pettingzoo:connect_four_v3",
    "pettingzoo:go_v5?board_size=5",
    "reasoning_gym:leg_counting",
    "textarena:Countdown-v0",
    "textarena:Minesweeper-v0-small",
    "textarena:Sudoku-v0-very-easy",
)


@pytest.mark.parametrize(
    "entry", [entry for entry in catalogue.ENTRIES if entry.task in SHORT], ids=lambda each: each.task
)
def test_a_good_policy_is_paid_more_than_a_bad_one(entry: Entry) -> None:
    row = catalogue.measure(entry, 2)
    assert row["ordered"], row


def test_a_reward_that_is_the_wrong_way_round_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from environments.bridges.gymnasium import GOALS, reached
    from environments.bridges.packages import load

    monkeypatch.setitem(GOALS, "CartPole", reached)  # by the last reward, which a fall earns
    load.cache_clear()
    row = catalogue.measure(Entry("gymnasium:CartPole-v1", "act 0"), 3)
    load.cache_clear()
    assert not row["ordered"]
    assert row["good"] < row["bad"]


def rows_of(module: str, folder: Path) -> list[dict[str, Any]]:
    done = run([sys.executable, "-m", f"benchmarks.{module}", "--json", "--folder", str(folder)], ROOT, seconds=5_000)
    assert done.returncode == 0, done.stderr[-2_000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.nightly
@pytest.mark.timeout(5_100)
def test_the_whole_catalogue_is_in_order(tmp_path: Path) -> None:
    rows = rows_of("catalogue", tmp_path)
    assert len(rows) == len(catalogue.ENTRIES) >= 40
    assert len({row["name"].partition(":")[0] for row in rows}) == 6
    assert [row["name"] for row in rows if not row["ordered"]] == []


@pytest.mark.nightly
@pytest.mark.timeout(5_100)
def test_servers_of_two_registries_answer_every_call(tmp_path: Path) -> None:
    rows = rows_of("mcp_servers", tmp_path)
    assert len(rows) == len(mcp_servers.SERVERS) >= 20
    assert [row for row in rows if row["ratio"] < 1 or row["works"] not in (None, 1)] == []
