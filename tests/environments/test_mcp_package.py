"""An MCP server of PyPI, unmodified, as a task: from its installation to scenarios and episodes, without a line of code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import environments
from addons.models import players
from addons.models.section import Endpoint
from addons.supervised import generate
from environments import _new
from environments.base import Scenario
from tests.support import shop_database
from tests.support.openai_server import Server

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("own_ledger")]


@pytest.fixture(scope="module")
def server_command(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The package, in an environment of its own."""
    folder = tmp_path_factory.mktemp("site") / "venv"
    python = folder / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    for words in (["venv", str(folder)], ["pip", "install", "--python", str(python), *shop_database.PACKAGES]):
        done = subprocess.run([uv, "--quiet", *words], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"the package cannot be installed here: {done.stderr.strip()[-200:]}")
    return f"{folder}/bin/mcp-server-sqlite --db-path {{work}}/shop.db"


def test_scenarios_are_written_and_every_episode_has_a_database_of_its_own(
    server_command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("environments", "tasks_data"):
        (tmp_path / "shop" / name).mkdir(parents=True)
    settings, *_ = _new.write_mcp("shop_database", server_command, tmp_path / "shop")
    text = yaml.safe_load(settings.read_text())
    text |= {"description": shop_database.DESCRIPTION, "examples": shop_database.EXAMPLES}
    settings.write_text(yaml.safe_dump(text))
    (settings.parent / "work").mkdir()
    shop_database.make(settings.parent / "work" / "shop.db")
    task = "shop.environments.shop_database"
    folder = settings.parent.rename(settings.parent.with_name(task))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path / "shop")
    out = folder / "scenarios.jsonl"
    with Server(shop_database.stand_in) as server:
        words = ["--task", task, "--out", str(out), "--count", "6", "--model", "writer", "--solver", "player"]
        assert generate.main([*words, "--url", server.url]) == 0
        env: Any = environments.load(task)
        data = env.load(folder)
        scenarios: list[Scenario] = [one for split in data.scenarios.values() for one in split]
        policy = players.on_server(Endpoint(model="player", base_url=server.url))
        attempts = [(scenario, number) for scenario in scenarios for number in range(2)]
        played, again = (players.play(policy, env, data, attempts, prefix="x") for _ in range(2))
    assert len(scenarios) == 6
    assert list(env.tools()) == [
        "append_insight",
        "create_table",
        "describe_table",
        "list_tables",
        "read_query",
        "write_query",
    ]
    assert [game.trajectory for game in played] == [game.trajectory for game in again]
    assert {game.trajectory.stop_reason for game in played} == {"done"}
    assert all("[{'" in game.trajectory.turns[1].message["content"] for game in played)
    first, second = (env(scenarios[0], data) for _ in range(2))
    assert "affected_rows" in first.call("write_query", {"query": "DELETE FROM orders"})
    counted = "SELECT COUNT(*) AS n FROM orders"
    assert [episode.call("read_query", {"query": counted}) for episode in (first, second)] == [
        "[{'n': 0}]",
        "[{'n': 400}]",
    ]
    first.release()
    second.release()
