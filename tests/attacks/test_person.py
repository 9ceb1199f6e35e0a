"""What a person without the right to promote tries: at MLflow's real server, the served model, uploads and trials."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from addons.fleet import vllm_server
from addons.fleet.uploads import Uploads
from addons.production.section import Serve
from addons.production.serving import live
from flows.deployment import people
from flows.promotion import change
from steps.core.params import Policy
from tests.conftest import MlflowServer
from tests.flows.test_mlflow_server import basic
from tests.support.fake_registry import FakeRegistry

API, AJAX = "/api/2.0/mlflow", "/ajax-api/2.0/mlflow"
MODEL = "guarded_model"


class Site(NamedTuple):
    """MLflow's server with a model that has a champion, and a person's key."""

    server: MlflowServer
    key: str
    champion: str
    other: str
    logged: str

    def ask(self, method: str, path: str, body: Any = None, user: str = "mallory", **headers: str) -> tuple[int, str]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        key = self.key if user == "mallory" else self.server.variables["MLFLOW_TRACKING_PASSWORD"]
        headers = {"Content-Type": "application/json", "Authorization": basic(key, user)} | headers
        request = urllib.request.Request(f"{self.server.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status), answer.read().decode(errors="replace")
        except urllib.error.HTTPError as problem:
            return problem.code, problem.read().decode(errors="replace")

    def owner(self, method: str, path: str, body: Any = None) -> Any:
        status, text = self.ask(method, path, body, user="flywheel")
        assert status == 200, text
        return json.loads(text)

    def state(self) -> Any:
        """What no probe may change: the model, its versions, the experiments' places."""
        model = self.owner("GET", f"{API}/registered-models/get?name={MODEL}")["registered_model"]
        found = self.owner("GET", f"{API}/model-versions/search?filter=name%3D%27{MODEL}%27")["model_versions"]
        versions = [(each["version"], each["source"], each.get("tags"), each.get("current_stage")) for each in found]
        experiments = self.owner("POST", f"{API}/experiments/search", {"max_results": 100})["experiments"]
        places = {each["artifact_location"].rpartition("/")[0] for each in experiments}
        return model.get("aliases"), model.get("tags"), sorted(map(str, versions)), sorted(places)


@pytest.fixture(scope="module")
def site(mlflow_server: MlflowServer) -> Site:
    root = mlflow_server.artifacts.parent.parent
    made = Site(mlflow_server, people.add(root, "mallory", False), "1", "2", "")
    experiment = made.owner("POST", f"{API}/experiments/create", {"name": "guarded"})["experiment_id"]
    made.owner("POST", f"{API}/registered-models/create", {"name": MODEL})
    for _ in range(2):
        logged = made.owner("POST", f"{API}/logged-models", {"experiment_id": experiment, "name": "adapter"})
        name = logged["model"]["info"]["model_id"]
        made.owner(
            "POST", f"{API}/model-versions/create", {"name": MODEL, "source": f"models:/{name}", "model_id": name}
        )
    made.owner("POST", f"{API}/registered-models/alias", {"name": MODEL, "alias": "champion", "version": "1"})
    return made._replace(logged=name)


def alias(name: str, version: str = "2") -> dict[str, str]:
    return {"name": MODEL, "alias": name, "version": version}


TAG = {"name": MODEL, "version": "1", "key": "rollback_looks", "value": "99"}
ALIAS = f"{API}/registered-models/alias"
HOLE = {"name": "hole", "artifact_location": "file:///etc"}
EVENTS = [{"entity": "REGISTERED_MODEL", "action": "CREATED"}]
PROBES: dict[str, tuple[str, str, Any]] = {
    "puts a version on trial": ("POST", ALIAS, alias("canary")),
    "moves champion": ("POST", ALIAS, alias("champion")),
    "moves champion in capitals, by ajax": ("POST", f"{AJAX}/registered-models/alias", alias("CHAMPION")),
    "moves previous": ("POST", ALIAS, alias("previous")),
    "makes an alias of its own": ("POST", ALIAS, alias("mine")),
    "takes champion away": ("DELETE", ALIAS, {"name": MODEL, "alias": "champion"}),
    "takes champion away by the address": ("DELETE", f"{ALIAS}?name={MODEL}&alias=champion", None),
    "two aliases in one body": (
        "POST",
        ALIAS,
        b'{"alias": "challenger", "name": "%b", "version": "2", "alias": "champion"}' % MODEL.encode(),
    ),
    "a body twice in JSON": ("POST", ALIAS, json.dumps(json.dumps(alias("champion"))).encode()),
    "a body in UTF-16": ("POST", ALIAS, json.dumps(alias("champion")).encode("utf-16")),
    "two slashes": ("POST", f"{API}//registered-models//alias", alias("champion")),
    "a slash at the end": ("POST", f"{ALIAS}/", alias("champion")),
    "capitals in the path": ("POST", ALIAS.upper(), alias("champion")),
    "a letter in per cent": ("POST", ALIAS.replace("alias", "%61lias"), alias("champion")),
    "a line's end in the path": ("POST", f"{ALIAS}%0a", alias("champion")),
    "another method in a header": ("GET", f"{ALIAS}?name={MODEL}&alias=champion", None),
    "sets a deciding tag": ("POST", f"{API}/model-versions/set-tag", TAG),
    "deletes a deciding tag": ("DELETE", f"{API}/model-versions/delete-tag", TAG),
    "writes a model card": (
        "PATCH",
        f"{API}/model-versions/update",
        {"name": MODEL, "version": "1", "description": "x"},
    ),
    "moves a stage": (
        "POST",
        f"{API}/model-versions/transition-stage",
        TAG | {"stage": "Production"},
    ),
    "deletes a version": ("DELETE", f"{API}/model-versions/delete", {"name": MODEL, "version": "1"}),
    "deletes the model": ("DELETE", f"{API}/registered-models/delete", {"name": MODEL}),
    "renames the model": ("POST", f"{API}/registered-models/rename", {"name": MODEL, "new_name": "away"}),
    "tags the model": ("POST", f"{API}/registered-models/set-tag", {"name": MODEL, "key": "task", "value": "x"}),
    "registers a prompt": (
        "POST",
        f"{API}/registered-models/create",
        {"name": "p", "tags": [{"key": "mlflow.prompt.is_prompt", "value": "true"}]},
    ),
    "a version of a folder": ("POST", f"{API}/model-versions/create", {"name": MODEL, "source": "file:///etc"}),
    "a version of a bucket": ("POST", f"{API}/model-versions/create", {"name": MODEL, "source": "s3://other/x"}),
    "a version that is decided": (
        "POST",
        f"{API}/model-versions/create",
        {"name": MODEL, "source": f"models:/m-{'0' * 32}", "tags": [{"key": "canary_since", "value": "2020"}]},
    ),
    "an experiment in any folder": ("POST", f"{API}/experiments/create", HOLE),
    "an experiment in any folder, other spelling": (
        "POST",
        f"{AJAX}/experiments/create",
        {"name": "hole", "artifactLocation": "file:///etc"},
    ),
    "a trace in any folder": (
        "PATCH",
        f"{API}/traces/tr-1/tags",
        {"key": "mlflow.artifactLocation", "value": "file:///etc"},
    ),
    "a file through the server": ("PUT", "/api/2.0/mlflow-artifacts/artifacts/../../mlflow.key", b"x"),
    "a key by the artifacts": ("GET", "/api/2.0/mlflow-artifacts/artifacts/..%2f..%2fmlflow.key", None),
    "a webhook to a neighbour": ("POST", f"{API}/webhooks", {"name": "w", "url": "https://10.0.0.1", "events": EVENTS}),
    "the gateway's secrets": ("GET", "/api/3.0/mlflow/gateway/secrets/list", None),
    "a gateway endpoint": ("POST", "/ajax-api/3.0/mlflow/gateway/endpoints/create", {"name": "x"}),
    "another server, through the gateway": ("POST", "/ajax-api/2.0/mlflow/gateway-proxy", {"gateway_path": "x"}),
    "a scorer": ("POST", "/api/3.0/mlflow/scorers/register", {"experiment_id": "0", "name": "x"}),
    "a job": ("POST", "/ajax-api/3.0/jobs/", {"job_name": "x", "params": {}}),
    "an MCP server": ("POST", "/api/3.0/mlflow/mcp-servers", {"name": "x"}),
    "GraphQL that writes": ("POST", "/graphql", {"query": "mutation { x }"}),
    "the assistant": ("POST", "/ajax-api/3.0/mlflow/assistant/message", {"message": "run id"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("probe", PROBES)
def test_mlflows_server_refuses(site: Site, probe: str) -> None:
    method, path, body = PROBES[probe]
    before = site.state()
    headers = {"X-HTTP-Method-Override": "DELETE"} if method == "GET" else {}
    status, text = site.ask(method, path, body, **headers)
    assert status in (400, 403, 404, 405) or (method == "GET" and probe == "another method in a header"), (status, text)
    assert site.state() == before
    assert "Traceback" not in text


@pytest.mark.slow
def test_and_training_goes_on(site: Site) -> None:
    """What everybody may do: an experiment, a run, a logged model, a version, and the alias `challenger`."""
    experiment = json.loads(site.ask("POST", f"{API}/experiments/create", {"name": "of mallory"})[1])["experiment_id"]
    status, text = site.ask("POST", f"{API}/runs/create", {"experiment_id": experiment, "start_time": 1})
    assert status == 200, text
    run = json.loads(text)["run"]["info"]
    assert run["artifact_uri"].startswith(site.server.artifacts.as_uri())
    for path, body in {
        "runs/log-batch": {"run_id": run["run_id"], "metrics": [{"key": "a", "value": 1, "timestamp": 1, "step": 0}]},
        "model-versions/create": {"name": MODEL, "source": f"models:/{site.logged}", "model_id": site.logged},
        "registered-models/alias": alias("challenger"),
    }.items():
        status, text = site.ask("POST", f"{API}/{path}", body)
        assert status == 200, (path, text)
    assert site.ask("POST", "/graphql", {"query": "query { x }"})[0] != 403, "the pages of runs ask by it"
    site.owner("DELETE", ALIAS, {"name": MODEL, "alias": "challenger"})


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{", '{"mallory": [1, 2]}', "[" * 90_000])
def test_a_damaged_file_of_people_opens_nothing_and_says_so(site: Site, text: str) -> None:
    file = site.server.artifacts.parent.parent / people.FILE
    kept = file.read_text()
    try:
        file.write_text(text)
        status, answer = site.ask("GET", f"{API}/registered-models/get?name={MODEL}")
        assert (status, "is damaged: delete it" in answer) == (503, True)
        assert site.ask("GET", "/health")[0] == 200
    finally:
        file.write_text(kept)


# --- Trials: whoever set the alias, and says that people are content


class Content(live.Scores):
    """Everybody is content with version 2 alone, says whoever has the serving key."""

    def __init__(self) -> None:
        pass

    def of(self, version: str, since: str = "") -> list[float]:
        return [float(version == "2")] * 400


CONTENT: Any = Content()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    return tmp_path


@pytest.mark.parametrize(
    "tags", [{}, {"canary_since": "2020-01-01T00:00:00.0Z", "canary_looks": "0"}, {"promoted": "true"}]
)
def test_a_trial_needs_the_gate(here: Path, tags: dict[str, str]) -> None:
    registry = FakeRegistry(champion="1", canary="2")
    registry.versions["2"].tags |= tags
    assert live.decide_canary(registry.model, CONTENT, Serve(canary=0.5, min_feedback=10)) == ""
    assert registry.made == 0


def test_another_adapter_under_the_number_that_the_gate_let_through_is_not_on_trial(here: Path) -> None:
    registry = FakeRegistry(champion="1")
    change.decide(registry.model, "canary", "2", "better", live.trial_writes("2"))
    registry.versions["2"].tags["adapter_hash"] = "0123456789abcdef"
    assert live.decide_canary(registry.model, CONTENT, Serve(canary=0.5, min_feedback=10)) == ""
    assert registry.aliases == {"champion": "1", "canary": "2"}


def test_the_gates_word_on_another_model_counts_for_nothing(here: Path) -> None:
    registry = FakeRegistry(champion="1")
    change.decide(registry.model._replace(name="other"), "canary", "2", "better", live.trial_writes("2"))
    assert live.decide_canary(registry.model, CONTENT, Serve(canary=0.5, min_feedback=10)) == ""


def test_a_withdrawn_version_does_not_come_back_by_its_alias(here: Path) -> None:
    registry = FakeRegistry(champion="1")
    change.decide(registry.model, "canary", "2", "better", live.trial_writes("2"))
    live.withdraw(registry.model, "2", "nobody liked it")
    registry.aliases["canary"] = "2"
    assert live.decide_canary(registry.model, CONTENT, Serve(canary=0.5, min_feedback=10)) == ""


# --- Servers of models: whoever has the key


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TestClient]:
    """Uploads and guard, in front of an application that answers everything."""
    for name, value in vllm_server.environment(Policy(), "10.0.0.5", 8000, "a-key", tmp_path / "kept", True).items():
        monkeypatch.setenv(name, value)

    async def reached(request: Request) -> Response:
        return PlainTextResponse("reached")

    routes = [Route("/{path:path}", reached, methods=["GET", "POST", "PUT", "DELETE", "PATCH"])]
    app = Starlette(routes=routes, middleware=[Middleware(Uploads)])
    with TestClient(app, base_url="http://10.0.0.5", headers={"Authorization": "Bearer a-key"}) as made:
        yield made


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/scale_elastic_ep"),
        ("POST", "/is_scaling_elastic_ep"),
        ("POST", "/sleep"),
        ("POST", "/collective_rpc"),
        ("POST", "/update_weights"),
        ("POST", "/abort_requests"),
        ("POST", "/start_profile"),
        ("GET", "/server_info"),
        ("POST", "//scale_elastic_ep"),
        ("POST", "/v1/../scale_elastic_ep"),
        ("POST", "/SCALE_ELASTIC_EP"),
        ("PATCH", "/v1/models"),
        ("DELETE", "/v1/responses/1"),
    ],
)
def test_a_client_with_the_key_does_not_steer_the_server(server: TestClient, method: str, path: str) -> None:
    assert server.request(method, path).status_code == 403


@pytest.mark.parametrize(
    "path", ["../../x/adapter_config.json", "0" * 16 + "/..%2fadapter_config.json", "unfinished/x"]
)
def test_an_upload_stays_in_its_folder(server: TestClient, tmp_path: Path, path: str) -> None:
    assert server.put(f"/flywheel/adapters/{path}", content=b"{}").status_code == 403
    assert not (tmp_path / "kept").exists()
