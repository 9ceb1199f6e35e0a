"""The guard of the served model, on an application with the paths that vLLM's server has."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from addons.production.serving.server import Server
from environments.email_search import EmailSearch
from steps.core.params import Policy
from steps.kit import vllm_guard as guard
from steps.kit.vllm_guard import Guard
from steps.policy.loading import load_chat

KEY, SWAP_TOKEN = "a-key", "a-swap-token"
MODELS = (
    "/v1/models",
    "/v1/chat/completions",
    "/invocations",
    "/ping",
    "/metrics",
    "/openapi.json",
    "/tokenize",
    "/no-such",
)
ADAPTERS = (
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/adapters"),
    ("DELETE", "/adapters/email_search"),
    ("DELETE", "/adapters/email%5Fsearch"),
    ("POST", "/v1/load_lora_adapter/"),
)


async def reached(request: Request) -> Response:
    return PlainTextResponse("reached")


async def heard(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("reached")
    await socket.close()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    for name, value in Server("10.0.0.5", 8000, "email_search", KEY, SWAP_TOKEN).environment(Policy()).items():
        monkeypatch.setenv(name, value)
    everything = Route("/{path:path}", reached, methods=["GET", "POST", "DELETE", "OPTIONS", "HEAD"])
    mounted = Mount("/metrics", routes=[Route("/", reached)])
    routes = [WebSocketRoute("/v1/realtime", heard), mounted, everything]
    app = Starlette(routes=routes, middleware=[Middleware(Guard)])
    with TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False) as test_client:
        yield test_client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", MODELS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_every_path_asks_for_the_key(client: TestClient, path: str, method: str) -> None:
    for headers in (
        {},
        bearer(""),
        bearer("wrong"),
        bearer(KEY + "x"),
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
    ):
        answer = client.request(method, path, headers=headers)
        assert (answer.status_code, "serve.key" in answer.json()["error"]["message"]) == (401, True), headers
    assert client.request(method, path, headers=bearer(KEY)).status_code != 401


def test_health_alone_is_open(client: TestClient) -> None:
    assert client.get("/health", headers={"host": "any.example"}).text == "reached"
    for method, path in (("POST", "/health"), ("GET", "/health/"), ("GET", "/health/x")):
        assert client.request(method, path).status_code == 401, (method, path)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:9", "10.0.0.5:8000"])
def test_the_servers_own_names_are_hosts(client: TestClient, host: str) -> None:
    assert client.get("/v1/models", headers=bearer(KEY) | {"host": host}).text == "reached"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "",
        "10.0.0.6",
        "[::1]:8000",
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/invocations", "/adapters"])
def test_another_host_is_refused_even_with_the_key(client: TestClient, host: str, path: str) -> None:
    answer = client.post(path, headers=bearer(KEY) | {"host": host, guard.SWAP_HEADER: SWAP_TOKEN})
    assert (answer.status_code, "127.0.0.1, localhost" in answer.json()["error"]["message"]) == (421, True)


@pytest.mark.parametrize(("method", "path"), ADAPTERS)
def test_a_client_with_the_key_cannot_change_adapters(client: TestClient, method: str, path: str) -> None:
    for headers in ({}, {guard.SWAP_HEADER: ""}, {guard.SWAP_HEADER: KEY}):
        answer = client.request(method, path, headers=bearer(KEY) | headers)
        assert (answer.status_code, "registry alone" in answer.json()["error"]["message"]) == (403, True)
    ours = bearer(KEY) | {guard.SWAP_HEADER: SWAP_TOKEN}
    is_flows = path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
    assert (client.request(method, path, headers=ours).text == "reached") is is_flows
    assert client.request(method, path, headers={guard.SWAP_HEADER: SWAP_TOKEN}).status_code == 401


def test_a_websocket_is_guarded_too(client: TestClient) -> None:
    for headers in ({}, bearer(KEY) | {"host": "127.0.0.1"}):
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime", headers=headers):
            pass


def test_of_vllms_paths_only_those_for_clients_are_served(client: TestClient) -> None:
    """Its sources have the others: what a new version brings is closed until it is listed."""
    [package] = importlib.util.find_spec("vllm").submodule_search_locations or []  # pyrefly: ignore[missing-attribute]
    sources = "".join(path.read_text() for path in Path(package).glob("entrypoints/**/api_router.py"))
    found = re.findall(r'router\.(get|post|put|delete)\(\s*"([^"]+)"', sources)
    asked = {(method.upper(), path.replace("{response_id}", "1")) for method, path in found}
    reached = {
        (method, path) for method, path in asked if client.request(method, path, headers=bearer(KEY)).text == "reached"
    }
    assert len(asked) > 60
    assert ("POST", "/scale_elastic_ep") in asked - reached
    assert reached <= guard.ROUTES
    assert {("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("POST", "/tokenize")} <= reached


@pytest.mark.parametrize("missing", [guard.KEY, guard.SWAP_TOKEN])
@pytest.mark.parametrize("value", ["", "  \n"])
def test_without_its_secrets_the_server_does_not_start(
    monkeypatch: pytest.MonkeyPatch, missing: str, value: str
) -> None:
    monkeypatch.setenv(guard.KEY, KEY)
    monkeypatch.setenv(guard.SWAP_TOKEN, SWAP_TOKEN)
    monkeypatch.setenv(missing, value)
    with pytest.raises(RuntimeError, match="is empty: without them the server would answer anybody"):
        Guard(Starlette())


def test_the_server_is_started_with_its_guard() -> None:
    server, policy = Server("10.0.0.5", 8000, "toy", KEY, SWAP_TOKEN), Policy()
    words = server.command(policy, Path("/adapters/a"), load_chat(policy, EmailSearch))
    assert [words[place + 1] for place, word in enumerate(words) if word == "--middleware"][
        -1
    ] == "steps.kit.vllm_guard.Guard"
    assert words[words.index("--host") + 1] == "10.0.0.5"
    assert not {KEY, SWAP_TOKEN} & set(words), "a secret in the command line could be read by everybody on the machine"
