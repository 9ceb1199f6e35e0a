"""How `make serve` follows an alias, and what it survives. The registry's client and vLLM are fakes, which are named so."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from addons.production import serve
from addons.production.serve import SERVED, STATE, Follower, ServeParams
from addons.production.serving import trial
from addons.production.serving.server import Server, served_key
from addons.production.traces.store import Store
from steps.core import params
from steps.core.errors import UserError
from steps.kit import vllm_guard as guard
from steps.policy.adapter import adapter_hash
from steps.policy.served import checked_host
from steps.project.ledger import Ledger
from steps.registry import decisions
from steps.registry.decisions import Decision
from steps.registry.model import RegisteredModel, fetched, tagged_adapter
from tests.support.openai_server import send

BAD_TAGS = [
    None,
    "",
    "../../precious",
    "/tmp/precious",
    ".",
    "0123456789abcde",
    "0123456789abcdef0",
    "0123456789ABCDEF",
    "0123456789abcdef\n",
    "0123456789abcde/",
]


class FakeStore:
    """Stands for MLflow's store of artifacts: copies an adapter, or fails as it is told."""

    def __init__(self, root: Path) -> None:
        self.root, self.downloads = root, 0
        self.problem: Exception | None = None

    def _get_artifact_repo(self, model: str, resource: str) -> SimpleNamespace:
        def download(_: str, target: str) -> None:
            self.downloads += 1
            shutil.copy(self.root / model / "adapter_config.json", target)
            if self.problem is not None:
                raise self.problem
            shutil.copytree(self.root / model, target, dirs_exist_ok=True)

        return SimpleNamespace(download_artifacts=download)


class FakeVllm:
    """Stands for vLLM's server: takes adapters, or refuses them as it is told."""

    def __init__(self) -> None:
        self.loaded: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.refuses = False
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.headers.append({name.lower(): value for name, value in self.headers.items()})
                if fake.refuses:
                    return send(self, 400, {"error": {"message": "the rank is too large"}})
                fake.loaded.append(body | {"path": self.path})
                return send(self, 200, {})

            def log_message(self, format: str, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def server(self) -> Server:
        return Server("127.0.0.1", self.http.server_address[1], "toy", "a-key", "a-swap-token")


class Registry:
    """A registered model whose alias `champion` can be moved, over a fake client."""

    def __init__(self, root: Path) -> None:
        self.root, self.store = root / "store", FakeStore(root / "store")
        self.versions: dict[str, Any] = {}
        self.champion, self.canary = "1", ""
        self.problem: Exception | None = None

    def add(self, number: str, **tags: str) -> str:
        """A version with an adapter of its own; returns the adapter's hash."""
        folder = self.root / f"m-{number}"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text('{"r": 4}')
        (folder / "adapter_model.safetensors").write_bytes(number.encode())
        name = adapter_hash(folder)
        source = f"models:/m-{number}"
        self.versions[number] = SimpleNamespace(
            name="toy", version=number, source=source, tags={"adapter_hash": name} | tags
        )
        return name

    def read(self, *_: object) -> RegisteredModel:
        if self.problem is not None:
            raise self.problem
        client = SimpleNamespace(_tracking_client=self.store)
        aliases = {"champion": self.champion} | ({"canary": self.canary} if self.canary else {})
        return RegisteredModel(client, "toy", self.versions, aliases)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry(tmp_path)
    made.add("1")
    made.add("2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve, "read_registry", made.read)
    return made


@pytest.fixture
def vllm() -> Iterator[FakeVllm]:
    fake = FakeVllm()
    yield fake
    fake.http.shutdown()
    fake.http.server_close()


@pytest.fixture
def follower(tmp_path: Path, registry: Registry) -> Follower:
    settings = params.parse("task: toy\nserve: {canary: 0.5}\n", tmp_path / "params.yaml", ServeParams)
    return Follower(tmp_path, settings, "champion")


def test_a_moved_alias_is_swapped_by_our_own_token(
    follower: Follower, registry: Registry, vllm: FakeVllm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    follower.follow(vllm.server)
    assert vllm.loaded == []
    registry.champion = "2"
    follower.follow(vllm.server)
    folder = tmp_path / SERVED / tagged_adapter(registry.versions["2"])
    body = {"lora_name": "toy", "lora_path": str(folder), "load_inplace": True, "path": "/v1/load_lora_adapter"}
    assert vllm.loaded == [body]
    assert vllm.headers[0][guard.SWAP_HEADER] == "a-swap-token"
    assert vllm.headers[0]["authorization"] == "Bearer a-key"
    assert "now serving version 2 in place of 1" in capsys.readouterr().out


def without_tag(registry: Registry, vllm: FakeVllm) -> None:
    del registry.versions["2"].tags["adapter_hash"]


def a_path_as_tag(registry: Registry, vllm: FakeVllm) -> None:
    registry.versions["2"].tags["adapter_hash"] = "../../precious"


def refused(registry: Registry, vllm: FakeVllm) -> None:
    vllm.refuses = True


def full_disk(registry: Registry, vllm: FakeVllm) -> None:
    registry.store.problem = OSError(errno.ENOSPC, "No space left on device")


def another_base(registry: Registry, vllm: FakeVllm) -> None:
    registry.versions["2"].tags["base_model"] = "org/other"


def unreachable(registry: Registry, vllm: FakeVllm) -> None:
    registry.problem = UserError("MLflow cannot be reached")


def ended(registry: Registry, vllm: FakeVllm) -> None:
    vllm.http.shutdown()
    vllm.http.server_close()


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (without_tag, "toy version 2 has no tag adapter_hash"),
        (a_path_as_tag, "'../../precious' as tag adapter_hash"),
        (refused, "the rank is too large"),
        (full_disk, "No space left on device"),
        (another_base, "toy version 2 belongs to the base model org/other"),
        (unreachable, "MLflow cannot be reached"),
        (ended, "the server did not answer the swap"),
    ],
)
def test_what_cannot_be_followed_is_said_once_and_the_rest_goes_on(
    follower: Follower,
    registry: Registry,
    vllm: FakeVllm,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Any,
    cause: str,
) -> None:
    (tmp_path / "precious").mkdir()  # as an adapter of the user's own
    for name in ("adapter_config.json", "adapter_model.safetensors", "file"):
        (tmp_path / "precious" / name).write_text("of the user's")
    registry.champion = "2"
    spoil(registry, vllm)
    for _ in range(3):
        follower.follow(vllm.server)
    output = capsys.readouterr().out
    assert output.count(cause) == 1, output
    assert "version 1 is still served, for @champion cannot be followed" in output
    assert follower.version.version == "1"
    assert (tmp_path / "precious/file").read_text() == "of the user's"
    whole = {adapter_hash(registry.root / f"m-{number}") for number in "12"}
    assert {path.name for path in (tmp_path / SERVED).iterdir()} <= whole, "nothing half-written is left"


def test_it_goes_on_as_soon_as_the_cause_is_gone_and_tells_another_cause(
    follower: Follower, registry: Registry, vllm: FakeVllm, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.champion = "2"
    full_disk(registry, vllm)
    follower.follow(vllm.server)
    registry.store.problem = None
    refused(registry, vllm)
    follower.follow(vllm.server)
    assert "the rank is too large" in capsys.readouterr().out
    vllm.refuses = False
    follower.follow(vllm.server)
    assert follower.version.version == "2"
    registry.problem = UserError("MLflow cannot be reached at <Connection object at 0x7f01>")
    follower.follow(vllm.server)
    registry.problem = UserError("MLflow cannot be reached at <Connection object at 0x7f02>")
    follower.follow(vllm.server)
    output = capsys.readouterr().out
    assert output.count("MLflow cannot be reached") == 1
    assert "version 2 is still served" in output


@pytest.mark.parametrize("tag", BAD_TAGS)
def test_a_tag_that_is_no_hash_never_becomes_a_path(registry: Registry, tmp_path: Path, tag: str | None) -> None:
    version = registry.versions["1"]
    version.tags = {} if tag is None else {"adapter_hash": tag}
    for read in (tagged_adapter, lambda each: fetched(registry.read(), each, tmp_path / "target")):
        with pytest.raises(UserError, match=r"toy version 1 has .*16 hexadecimal digits"):
            read(version)
    assert registry.store.downloads == 0
    assert not (tmp_path / "target").exists()


def test_a_download_that_was_interrupted_is_made_again(registry: Registry, tmp_path: Path) -> None:
    version, target = registry.versions["1"], tmp_path / "target"
    target.mkdir()
    (target / "adapter_config.json").write_text('{"r": 4}')
    assert adapter_hash(fetched(registry.read(), version, target)) == tagged_adapter(version)
    fetched(registry.read(), version, target)
    assert registry.store.downloads == 1
    (registry.root / "m-1/adapter_model.safetensors").write_bytes(b"changed")
    shutil.rmtree(target)
    with pytest.raises(UserError, match="files were changed or lost"):
        fetched(registry.read(), version, target)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", " "])
def test_an_address_for_all_addresses_is_refused(host: str) -> None:
    with pytest.raises(UserError, match="is no address that a client could name"):
        checked_host(host)
    assert checked_host("10.0.0.5") == "10.0.0.5"
    assert Server("::1", 8000, "toy", "").page == "http://[::1]:8000"


def test_a_port_in_use_is_one_sentence(registry: Registry, tmp_path: Path, vllm: FakeVllm) -> None:
    (tmp_path / "params.yaml").write_text("task: toy\n")
    with pytest.raises(UserError, match="choose another with --port"):
        serve.serve(tmp_path, "champion", "127.0.0.1", vllm.server.port, 1.0)
    assert served_key(tmp_path), "the key is made first"


def test_a_version_on_trial_is_loaded_beside_the_champion_and_the_file_says_so(
    follower: Follower, registry: Registry, vllm: FakeVllm, capsys: pytest.CaptureFixture[str]
) -> None:
    def state() -> dict[str, Any]:
        return dict(json.loads(STATE.read_text()))

    STATE.parent.mkdir(exist_ok=True)
    follower.write("1")
    follower.follow(vllm.server)
    assert state() == {"name": "toy", "champion": "1", "canary": None, "canary_name": "", "share": 0.0}
    registry.canary = "2"
    for _ in range(2):
        follower.follow(vllm.server)
    assert vllm.loaded == [], "whoever may write to the registry can set the alias"
    assert capsys.readouterr().out.count("the ledger does not say that the gate let it through") == 1
    with Ledger() as ledger:
        adapter = registry.versions["2"].tags["adapter_hash"]
        decisions.record(ledger, Decision("canary", "toy", "2", adapter, "1", None, "better", "a verdict"))
    follower.follow(vllm.server)
    assert [load["lora_name"] for load in vllm.loaded] == ["toy-v2"], "beside the champion's, under a name of its own"
    assert state() == {"name": "toy", "champion": "1", "canary": "2", "canary_name": "toy-v2", "share": 0.5}
    assert "nobody can say how the version on trial does" in capsys.readouterr().out
    registry.canary, registry.champion = "", "2"
    follower.follow(vllm.server)
    assert [load["lora_name"] for load in vllm.loaded] == ["toy-v2", "toy"]
    assert state() == {"name": "toy", "champion": "2", "canary": None, "canary_name": "", "share": 0.0}


def test_while_the_champion_is_swapped_nobody_says_which_version_answers(
    follower: Follower, registry: Registry, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.write("1")
    states = []
    swap = Server.swap

    def watched(server: Server, *words: Any) -> None:
        states.append(json.loads(STATE.read_text())["champion"])
        swap(server, *words)

    monkeypatch.setattr(Server, "swap", watched)
    registry.champion, vllm.refuses = "2", True
    follower.follow(vllm.server)
    assert json.loads(STATE.read_text())["champion"] == "1", "it keeps what it has"
    vllm.refuses = False
    follower.follow(vllm.server)
    assert json.loads(STATE.read_text())["champion"] == "2"
    assert states == [None, None]


def test_a_full_disk_delays_what_the_file_says_and_no_more(
    registry: Registry, follower: Follower, vllm: FakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / ".flywheel").mkdir(exist_ok=True)
    follower.write("1")
    registry.champion = "2"
    write = trial.Served.write
    monkeypatch.setattr(trial.Served, "write", lambda self, path: full() if self.champion == "2" else write(self, path))
    follower.follow(vllm.server)
    assert json.loads((tmp_path / serve.STATE).read_text())["champion"] is None, "it was swapped"
    monkeypatch.setattr(trial.Served, "write", write)
    follower.follow(vllm.server)
    assert json.loads((tmp_path / serve.STATE).read_text())["champion"] == "2"


def test_what_is_not_captured_is_said_at_first_and_then_each_tenfold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts, said, kept = {"no consent": 7}, dict[str, int](), Store(tmp_path / "store")
    monkeypatch.setattr(Server, "missed", lambda _: counts)
    server = Server("127.0.0.1", 8000, "toy", "a-key")
    for lost in (1, 2, 9, 10, 11, 123):
        counts["No space left on device"] = lost
        serve.watch_capture(server, kept, said)
    shown = [line.partition("capture: ")[2] for line in capsys.readouterr().out.splitlines()]
    assert shown == [f"{count} not stored: No space left on device" for count in (1, 10, 123)]
    (tmp_path / "gone").write_text("a file")
    serve.watch_capture(server, Store(tmp_path / "gone"), said)
    assert "gone cannot be used (File exists), and nothing is stored" in capsys.readouterr().out
