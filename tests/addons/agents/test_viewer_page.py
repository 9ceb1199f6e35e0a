"""The viewer's page about agents that are being played now."""

from __future__ import annotations

import json
from pathlib import Path

from addons.agents import viewer_page as agents
from tests.viewer.test_pages import Text, browse, make_run, read


def test_the_agents_tab_is_there_when_an_agent_is_played(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1)
    with browse(run) as client:
        assert "/agents" not in Text(client.get("/").text).links
        place = tmp_path / agents.ADDRESS
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps({"url": "http://127.0.0.1:9", "key": "k"}))
        assert "/agents" in Text(client.get("/").text).links
        place.unlink()
        alone = read(client, "/agents")
        assert "No agent of your own is being played now." in alone
        assert "`" not in alone
