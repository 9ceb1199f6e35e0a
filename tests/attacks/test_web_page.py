"""A web page in the browser of somebody who runs our servers: it can send what browsers send, to 127.0.0.1 as well.

It has no key. Against pages whose name points here, each probe is also sent with the key, which a browser might have: what
holds must not rest on the key alone. Each server is its real ASGI application. More probes of pages and names are in
tests/security/test_servers.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.security.test_servers import KEY, PORT, SURFACES, Surface, right

OURS, FOREIGN = f"127.0.0.1:{PORT}", "https://evil.example"
BODY = b'{"response_id": "x", "score": 1, "name": "x", "capacity": 1, "alias": "champion"}'


@pytest.fixture(params=SURFACES)
def surface(request: pytest.FixtureRequest) -> Surface:
    return SURFACES[request.param]


@pytest.fixture
def client(surface: Surface, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    made = surface.make(tmp_path, monkeypatch)
    return TestClient(made, base_url=f"http://{OURS}", follow_redirects=False, raise_server_exceptions=False)


def sent(client: TestClient, method: str, path: str, *headers: tuple[str, str], body: bytes = b"") -> Any:
    return client.request(method, path, headers=[(n.encode(), v.encode()) for n, v in headers], content=body)


# What a page can send by itself: method, headers, body.
PAGES: dict[str, tuple[str, list[tuple[str, str]], bytes]] = {
    "fetch with JSON as plain text": ("POST", [("content-type", "text/plain;charset=UTF-8")], BODY),
    "a beacon": ("POST", [("content-type", "text/plain"), ("sec-fetch-mode", "no-cors")], BODY),
    "a form whose field is JSON": (
        "POST",
        [("content-type", "text/plain")],
        b'{"response_id": "x", "score": 1, "z": "=\r\n"}',
    ),
    "a form that uploads a file": (
        "POST",
        [("content-type", "multipart/form-data; boundary=b")],
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--b--\r\n',
    ),
    "a body without a type": ("POST", [], BODY),
    "a picture's address": ("GET", [("sec-fetch-dest", "image"), ("sec-fetch-site", "cross-site")], b""),
    "a script's address": ("GET", [("sec-fetch-dest", "script"), ("sec-fetch-site", "same-site")], b""),
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_without_the_key_changes_and_reads_nothing(client: TestClient, surface: Surface, page: str) -> None:
    """Browsers leave `Origin` out of pictures and scripts, and send cookies of this machine's other ports."""
    method, headers, body = PAGES[page]
    origin = [("origin", FOREIGN)] if method == "POST" else []
    cookies = [("cookie", "session=1; flywheel-viewer=guess")]
    for path in (surface.path, "/feedback", "/capture", "/clients", "/api/2.0/mlflow/runs/create"):
        answer = sent(client, method, path, ("host", OURS), *origin, *cookies, *headers, body=body)
        assert answer.status_code in (401, 403, 404, 405), path
        assert "reached" not in answer.text
        assert "access-control-allow-origin" not in answer.headers


REBOUND = {
    "its own name": "evil.example",
    "its own name with our port": f"evil.example:{PORT}",
    "a name that ends in ours": "evil.localhost",
    "ours with a point behind": f"localhost.:{PORT}",
    "a name that stands for 127.0.0.1": "127.0.0.1.nip.io",
    "all addresses": f"0.0.0.0:{PORT}",
    "this machine in another notation": f"2130706433:{PORT}",
}
# MLflow's own middleware looks at names: flows/test_mlflow_server.py asks the real server. Clients of the gateway elsewhere
# name an address, which no DNS server can point elsewhere.
WITH_NAMES = [
    (surface, name)
    for surface in SURFACES
    for name in REBOUND
    if surface != "mlflow" and (surface, name) != ("gateway", "all addresses")
]


@pytest.mark.parametrize(("surface", "name"), WITH_NAMES, indirect=["surface"])
def test_a_name_that_points_here_is_not_answered_even_with_the_key(
    surface: Surface, client: TestClient, name: str
) -> None:
    answer = sent(client, surface.method, surface.path, *(right(surface) | {"host": REBOUND[name]}).items(), body=BODY)
    assert answer.status_code == 421
    assert "reached" not in answer.text


ORIGINS = {
    "another site": FOREIGN,
    "another port of this machine": "http://127.0.0.1:3000",
    "our name over TLS, another port": "https://127.0.0.1",
    "a sandboxed frame, or a file": "null",
    "an extension": "chrome-extension://abcdefghijklmnop",
    "our name and another": f"http://{OURS} {FOREIGN}",
    "our name as a user": f"http://{OURS}@evil.example",
    "another name for this machine": f"http://localhost:{PORT}",
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_page_that_has_the_key_is_not_answered(client: TestClient, surface: Surface, origin: str) -> None:
    answer = sent(client, surface.method, surface.path, *right(surface).items(), ("origin", ORIGINS[origin]), body=BODY)
    assert answer.status_code == 403
    assert "reached" not in answer.text
    assert not [name for name in answer.headers if name.startswith("access-control-allow")]


def test_no_page_is_let_into_the_private_network(client: TestClient, surface: Surface) -> None:
    """The question of a browser before a page of the Internet may ask an address of this machine."""
    asked = [("origin", FOREIGN), ("access-control-request-method", "POST")]
    asked += [("access-control-request-private-network", "true"), ("access-control-request-local-network", "true")]
    answer = sent(client, "OPTIONS", surface.path, ("host", OURS), *asked)
    assert answer.status_code in (401, 403, 405)
    assert not [name for name in answer.headers if name.startswith("access-control-allow")]


@pytest.mark.parametrize("path", ["", "/v1/realtime"])
def test_a_websocket_of_a_page_is_not_accepted(
    surface: Surface, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Browsers ask nobody before they open one, and send cookies with it. The key stands in the protocols, too."""
    told: list[Any] = []
    headers = right(surface) | {"origin": FOREIGN, "sec-websocket-protocol": f"openai-insecure-api-key.{KEY}"}
    scope = {"type": "websocket", "path": path or surface.path, "query_string": b"", "subprotocols": [KEY]}
    scope |= {"headers": [(name.encode(), value.encode()) for name, value in headers.items()], "scheme": "ws"}

    async def receive() -> Any:
        return {"type": "websocket.disconnect", "code": 1006} if told else {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        told.append(message["type"])

    asyncio.run(surface.make(tmp_path, monkeypatch)(scope, receive, send))
    assert "websocket.accept" not in told


@pytest.mark.parametrize(
    "path",
    [
        "/health/../v1/models",
        "/health\\..\\feedback",
        "//evil.example/health",
        "/health?/../clients",
        "/static/..%2f..%2fx",
    ],
)
def test_a_crooked_path_is_no_open_one(client: TestClient, surface: Surface, path: str) -> None:
    answer = sent(client, "POST", path, ("host", OURS), body=BODY)
    assert answer.status_code in (401, 403, 404, 405)
    assert "location" not in answer.headers


def test_the_viewers_pages_are_shown_in_no_frame_and_read_by_no_other_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface = SURFACES["viewer"]
    answer = sent(
        TestClient(surface.make(tmp_path, monkeypatch), base_url=f"http://{OURS}"), "GET", "/", *right(surface).items()
    )
    assert answer.status_code == 200
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    signed = TestClient(surface.make(tmp_path, monkeypatch), base_url=f"http://{OURS}", follow_redirects=False)
    cookie = signed.get("/", params={"key": KEY}).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite" in cookie
