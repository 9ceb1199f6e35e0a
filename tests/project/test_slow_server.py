"""An answer has to arrive whole within its time, unless it is long and arrives quickly."""

from __future__ import annotations

import pytest
import requests

from steps.project import slow_server
from tests.support.slow_servers import HEAD, dripping_server


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> requests.Session:
    monkeypatch.setattr(slow_server.LimitedResponse, "seconds", 0.4)
    session = requests.Session()
    session.trust_env = False
    session.mount("http://", slow_server.LimitedAdapter())
    return session


@pytest.mark.parametrize("whole_head", [False, True])
def test_a_byte_now_and_then_does_not_count_as_an_answer(session: requests.Session, whole_head: bool) -> None:
    """In the head of an answer, or in its body."""
    size = len(HEAD) if whole_head else 1
    with dripping_server(HEAD, size) as url, pytest.raises((requests.ReadTimeout, requests.ConnectionError)):
        session.get(url, timeout=30)


def test_a_long_answer_that_arrives_quickly_is_read_whole(
    session: requests.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a second, which is longer than the time for a short one."""
    monkeypatch.setattr(slow_server, "RATE", 50_000.0)
    with dripping_server(HEAD, 5000) as url:
        assert len(session.get(url, timeout=30).content) == 100_000
