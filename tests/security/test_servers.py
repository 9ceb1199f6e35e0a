"""Requests that none of our servers may answer: without the key, under another server's name, or from another site's page.

Each server is its real ASGI application; behind the guards of vLLM and MLflow stands one that answers everything.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from addons.agents.gateway.__main__ import listening
from addons.agents.gateway.server import Server as Gateway
from addons.fleet import vllm_server
from addons.fleet.uploads import Uploads
from addons.production.serving.server import Server as Served
from flows.deployment import mlflow_server
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.kit.vllm_guard import Guard
from viewer.app import application

KEY = "the-right-key"
PORT = 8000
OPEN = ("/health", "/openapi.json")  # these say nothing of a run


class Surface(NamedTuple):
    """A server: what makes it, a path that needs the key, and how the key is sent."""

    make: Callable[[Path, pytest.MonkeyPatch], Any]
    path: str
    method: str = "POST"
    scheme: str = "Bearer"


async def reached(request: Request) -> Response:
    return PlainTextResponse("reached")


def everything(guard: type[Guard]) -> Starlette:
    routes = [Route("/{path:path}", reached, methods=["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])]
    return Starlette(routes=routes, middleware=[Middleware(guard)])


def gateway(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    return Gateway(KEY).app


def served(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    for name, value in Served("127.0.0.1", PORT, "toy", KEY, "swap").environment(Policy()).items():
        patch.setenv(name, value)
    return everything(Guard)


def sampling(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    for name, value in vllm_server.environment(Policy(), "127.0.0.1", PORT, KEY, folder / "kept", True).items():
        patch.setenv(name, value)
    return everything(Uploads)


def mlflow(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    return mlflow_server.Guard(PlainTextResponse("reached"), KEY)


def viewer(folder: Path, patch: pytest.MonkeyPatch) -> Any:
    return application(folder / "run", KEY)


SURFACES = {
    "gateway": Surface(gateway, "/clients"),
    "served model": Surface(served, "/v1/chat/completions"),
    "sampling server": Surface(sampling, "/v1/load_lora_adapter"),
    "mlflow": Surface(mlflow, "/api/2.0/mlflow/runs/create", scheme="Basic"),
    "viewer": Surface(viewer, "/", "GET"),
}
WITH_NAMES = [name for name in SURFACES if name != "mlflow"]  # MLflow's own middleware does it for its server
NAMES = {
    "another name": ["evil.example"],
    "another name with our port": [f"evil.example:{PORT}"],
    "our address in front of another name": ["127.0.0.1.evil.example"],
    "another name behind an @": ["127.0.0.1@evil.example"],
    "no name": [""],
    "two names": ["127.0.0.1", "evil.example"],
    "a name with a line break": ["127.0.0.1\tevil.example"],
}
ORIGINS = {
    "another site": "http://evil.example",
    "another port of this machine": "http://127.0.0.1:3000",
    "a sandboxed frame": "null",
    "another site's page under our name": f"http://127.0.0.1:{PORT}.evil.example",
    "a file": "file://",
}
KEYS = {
    "none": {},
    "an empty one": {"authorization": "Bearer "},
    "an empty name and password": {"authorization": f"Basic {b64encode(b':').decode()}"},
    "another": {"authorization": "Bearer another"},
    "a part of it": {"authorization": f"Bearer {KEY[:-1]}"},
    "more than it": {"authorization": f"Bearer {KEY}x"},
    "in another scheme": {"authorization": f"Digest {KEY}"},
    "without a scheme": {"authorization": KEY},
    "in a cookie": {"cookie": f"authorization=Bearer {KEY}; key={KEY}"},
    "in another header": {"x-authorization": f"Bearer {KEY}", "x-forwarded-authorization": f"Bearer {KEY}"},
    "no text": {"authorization": "Bearer \xff\xfe"},
}


def right(surface: Surface) -> dict[str, str]:
    given = KEY if surface.scheme == "Bearer" else b64encode(f"flywheel:{KEY}".encode()).decode()
    return {"host": f"127.0.0.1:{PORT}", "authorization": f"{surface.scheme} {given}"}


@pytest.fixture(params=SURFACES)
def surface(request: pytest.FixtureRequest) -> Surface:
    return SURFACES[request.param]


@pytest.fixture
def client(surface: Surface, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    app = surface.make(tmp_path, monkeypatch)
    return TestClient(app, base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)


def ask(client: TestClient, surface: Surface, *headers: tuple[str, str], path: str | None = None, **more: Any) -> Any:
    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return client.request(more.pop("method", surface.method), path or surface.path, headers=sent, **more)


def test_who_has_the_key_is_answered(client: TestClient, surface: Surface) -> None:
    """Otherwise the other tests would show nothing."""
    assert ask(client, surface, *right(surface).items()).status_code in (200, 503)  # 503: no batch is played


@pytest.mark.parametrize("key", KEYS)
def test_the_key_is_needed(client: TestClient, surface: Surface, key: str) -> None:
    headers = {"host": f"127.0.0.1:{PORT}"} | KEYS[key]
    assert ask(client, surface, *headers.items()).status_code == 401
    for method in ("GET", "OPTIONS", "HEAD", "PUT", "DELETE"):
        assert ask(client, surface, *headers.items(), method=method).status_code in (401, 405), method


@pytest.mark.parametrize(
    "surface", [name for name in SURFACES if name != "viewer"], indirect=True
)  # it has links to sign in
def test_a_key_in_the_address_opens_nothing(client: TestClient, surface: Surface) -> None:
    """The viewer has links that sign in (tests/viewer/test_key.py)."""
    for name in ("key", "api_key", "authorization", "token", "access_token"):
        path = f"{surface.path}?{name}={KEY}"
        assert ask(client, surface, ("host", f"127.0.0.1:{PORT}"), path=path).status_code == 401


@pytest.mark.parametrize("surface", WITH_NAMES, indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_another_name_is_refused_with_the_key(client: TestClient, surface: Surface, name: str) -> None:
    """Against DNS rebinding. MLflow's: tests/flows/test_mlflow_server.py."""
    headers = [("authorization", right(surface)["authorization"]), *(("host", host) for host in NAMES[name])]
    answer = ask(client, surface, *headers)
    assert answer.status_code == 421
    assert "reached" not in answer.text


@pytest.mark.parametrize("surface", WITH_NAMES, indirect=True)
@pytest.mark.parametrize("header", ["x-forwarded-host", "forwarded", "x-original-host", "x-host"])
def test_a_header_of_a_proxy_gives_no_other_name(client: TestClient, surface: Surface, header: str) -> None:
    headers = right(surface) | {"host": "evil.example", header: "127.0.0.1"}
    assert ask(client, surface, *headers.items()).status_code == 421


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_page_of_another_site_is_refused_with_the_key(client: TestClient, surface: Surface, origin: str) -> None:
    answer = ask(client, surface, *right(surface).items(), ("origin", ORIGINS[origin]))
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert ask(client, surface, *right(surface).items(), ("origin", f"http://127.0.0.1:{PORT}")).status_code != 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_form_of_another_site_does_nothing(client: TestClient, surface: Surface, kind: str) -> None:
    """A browser posts these without asking first; it sends no key of ours with them."""
    headers = {"host": f"127.0.0.1:{PORT}", "content-type": kind, "origin": "http://evil.example"}
    answer = ask(client, surface, *headers.items(), content=b'{"name": "x", "capacity": 1}')
    assert answer.status_code in (401, 403)


def test_no_browser_is_invited(client: TestClient, surface: Surface) -> None:
    """The question that a browser asks before it sends a page's request with a key."""
    headers = {
        "host": f"127.0.0.1:{PORT}",
        "origin": "http://evil.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    answer = ask(client, surface, *headers.items(), method="OPTIONS")
    assert answer.status_code in (401, 403)
    assert not [name for name in answer.headers if name.startswith("access-control-allow")]


@pytest.mark.parametrize(
    "path", ["/health/../clients", "//clients", "/health%2f..%2fclients", "/HEALTH", "/health;x", "/health%00"]
)
def test_a_way_around_the_open_paths_leads_nowhere(client: TestClient, surface: Surface, path: str) -> None:
    answer = ask(client, surface, ("host", f"127.0.0.1:{PORT}"), path=path)
    assert answer.status_code in (401, 404, 405), answer.text
    assert "reached" not in answer.text


@pytest.mark.parametrize("override", ["x-http-method-override", "x-method-override", "x-http-method"])
def test_a_method_in_a_header_is_no_method(client: TestClient, surface: Surface, override: str) -> None:
    headers = {"host": f"127.0.0.1:{PORT}", override: "GET"}
    assert ask(client, surface, *headers.items(), path="/health", method="POST").status_code in (401, 405)


def test_a_refusal_holds_no_key_and_nothing_of_the_request(client: TestClient, surface: Surface) -> None:
    headers = {"host": f"127.0.0.1:{PORT}", "authorization": "Bearer <script>alert(1)</script>"}
    answer = ask(client, surface, *headers.items(), path=f"{surface.path}?<script>")
    assert answer.status_code == 401
    assert KEY not in answer.text
    assert "<script" not in answer.text


# --- The gateway's paths


@pytest.mark.parametrize(
    "path",
    [
        "/episodes/001-0/v1/chat/completions",
        "/episodes/..%2f..%2fclients/v1/chat/completions",
        "/episodes/%00/v1/models",
        "/episodes/'%20OR%201=1--/v1/chat/completions",
    ],
)
def test_the_gateways_own_key_opens_no_episode(path: str) -> None:
    client = TestClient(Gateway(KEY).app, base_url="http://127.0.0.1")
    answer = client.post(path, headers={"authorization": f"Bearer {KEY}"}, json={})
    assert answer.status_code in (401, 404, 405)


def test_what_is_open_says_nothing_of_a_run() -> None:
    client = TestClient(Gateway(KEY).app, base_url="http://127.0.0.1")
    assert client.get("/health").json() == {"status": "waiting"}
    assert KEY not in client.get("/openapi.json").text
    for path in OPEN:
        assert client.get(path, headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.0.0.5:8700"])
def test_an_address_that_others_reach_needs_a_key_of_the_users(address: str) -> None:
    with pytest.raises(UserError, match="others could reach the gateway there, so FLYWHEEL_GATEWAY_KEY must be set"):
        listening(address, has_own_key=False)


# --- The viewer, which reads alone


@pytest.mark.parametrize("run_name", ["../..", "/etc", "..%2f..", "--help", "<script>", "run\x00"])
def test_the_viewer_opens_no_other_folder(tmp_path: Path, run_name: str) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    with TestClient(application(tmp_path / "run", KEY), base_url="http://127.0.0.1", headers=headers) as client:
        for page in ("/", "/group", "/compare", "/analytics"):
            answer = client.get(page, params={"run": run_name, "group": run_name, "id": run_name})
            assert answer.status_code in (200, 400, 404)
            assert "root:x" not in answer.text
            assert "<script>" not in answer.text
