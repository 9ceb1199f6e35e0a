"""The pages are for whoever has the key that the command prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from viewer.app import application
from viewer.key import COOKIE, FILE, key_of

KEY = "the-right-key"
PAGES = ("/", "/group", "/compare", "/analytics", "/agents", "/nothing")


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return TestClient(application(tmp_path / "run", KEY), base_url="http://127.0.0.1:8600", follow_redirects=False)


@pytest.mark.parametrize("path", PAGES)
def test_without_the_key_there_is_a_form_alone(client: TestClient, path: str) -> None:
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {KEY}"},
        {"cookie": f"{COOKIE}=wrong"},
        {"cookie": f'{COOKIE}="'},
        {"cookie": f"other={KEY}"},
    ):
        answer = client.get(path, headers=headers)
        assert (answer.status_code, 'type="password"' in answer.text, KEY in answer.text) == (401, True, False)
    assert client.get(f"{path}?key=wrong").status_code == 401
    assert client.get(path, headers={"authorization": f"Bearer {KEY}"}).status_code in (200, 400, 404)


def test_a_link_with_the_key_signs_in_and_leads_on_without_it(client: TestClient) -> None:
    answer = client.get("/group", params={"run": "a b", "key": KEY, "by": ""})
    assert (answer.status_code, answer.headers["location"]) == (303, "/group?run=a+b&by=")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=lax" in answer.headers["set-cookie"]
    assert client.get("/").status_code == 200, "the browser has the cookie"


def test_the_form_signs_in(client: TestClient) -> None:
    assert client.post("/sign-in", data={"key": "wrong"}).status_code == 401
    assert client.post("/sign-in", content=b"\xff" * 100).status_code == 401
    assert client.post("/sign-in", content=b"k" * 5000).status_code == 413
    assert client.get("/sign-in", params={"key": KEY}).status_code == 401
    assert client.get("/").status_code == 401
    answer = client.post("/sign-in", data={"key": f" {KEY}\n"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert client.get("/").status_code == 200


def test_a_link_leads_to_no_other_server(client: TestClient) -> None:
    for path in ("//evil.example/", "///evil.example/%2f.."):
        location = client.get(f"http://127.0.0.1:8600{path}?key={KEY}").headers["location"]
        assert location.startswith("/")
        assert not location.startswith("//")


def test_health_and_styles_are_open(client: TestClient) -> None:
    assert client.get("/health").text == "ok"
    assert client.get("/static/view.css").status_code == 200


def test_the_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    made = key_of(tmp_path)
    assert key_of(tmp_path) == made
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_written_has_a_key_for_each_start(tmp_path: Path) -> None:
    (tmp_path / ".flywheel").write_text("no folder")
    assert key_of(tmp_path) != key_of(tmp_path)
