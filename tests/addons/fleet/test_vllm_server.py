"""The server for policy.kind server: its command, and who may bring it adapters."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from addons.fleet import uploads, vllm_server
from addons.fleet.uploads import KEPT, Uploads
from steps.core.params import Policy
from steps.policy.adapter import adapter_hash


def test_the_command_has_what_sampling_needs_and_vllm_knows_it() -> None:
    """vLLM's own sources have every option: importing them takes 20 s."""
    words = vllm_server.command(Policy(threads=1), "127.0.0.1", 8123, on_gpu=False)
    [package] = importlib.util.find_spec("vllm").submodule_search_locations or []  # pyrefly: ignore[missing-attribute]
    sources = "".join(
        (Path(package) / name).read_text() for name in ("engine/arg_utils.py", "entrypoints/launchers/cli_args.py")
    )
    for word in (word for word in words if word.startswith("--")):
        assert word.removeprefix("--").removeprefix("enable-").replace("-", "_") in sources, word
    pairs = dict(itertools.pairwise(words))
    assert (pairs["--logprobs-mode"], pairs["--max-lora-rank"], pairs["--generation-config"]) == (
        "processed_logprobs",
        "16",
        "vllm",
    )
    assert {"--enable-scale-out", "--enforce-eager"} <= set(words)
    assert pairs["--worker-cls"] == "steps.sampling.worker_cpu.Worker"
    assert (Path(__file__).parent.parent.parent.parent / "steps/sampling/worker_cpu.py").exists()


def test_on_a_gpu_the_stock_worker_and_batch_invariance_are_used() -> None:
    policy = Policy.model_validate({"dtype": "bfloat16", "deterministic": True, "tensor_parallel": 2})
    words = vllm_server.command(policy, "10.0.0.5", 8000, on_gpu=True)
    assert "--worker-cls" not in words
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert vllm_server.variables(policy, True)["VLLM_BATCH_INVARIANT"] == "1"
    assert "VLLM_BATCH_INVARIANT" not in vllm_server.variables(Policy(), True)
    shown = vllm_server.printed(policy, "10.0.0.5", 8000)
    assert shown.startswith('VLLM_API_KEY="$(cat key)" VLLM_ALLOW_RUNTIME_LORA_UPDATING=1')
    assert "addons.production.serving" not in shown  # no code of this project


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TestClient]:
    """The guard, in front of an application that answers everything."""
    for name, value in vllm_server.environment(Policy(), "10.0.0.5", 8000, "a-key", tmp_path / "kept", True).items():
        monkeypatch.setenv(name, value)

    async def reached(request: Request) -> Response:
        return PlainTextResponse("reached")

    app = Starlette(
        routes=[Route("/{path:path}", reached, methods=["GET", "POST", "PUT"])], middleware=[Middleware(Uploads)]
    )
    with TestClient(app, base_url="http://10.0.0.5", headers={"Authorization": "Bearer a-key"}) as made:
        yield made


def made_adapter(folder: Path, content: bytes) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(content)
    return folder


def bring(client: TestClient, adapter: Path, digest: str) -> list[Any]:
    return [
        client.put(f"/flywheel/adapters/{digest}/{name}", content=(adapter / name).read_bytes())
        for name in ("adapter_config.json", "adapter_model.safetensors")
    ]


def test_an_adapter_comes_whole_and_under_its_hash(client: TestClient, tmp_path: Path) -> None:
    adapter = tmp_path
    for number in range(KEPT + 2):
        adapter = made_adapter(tmp_path / str(number), bytes([number]) * 200_000)
        first, second = bring(client, adapter, adapter_hash(adapter))
        assert first.json() == {"path": None}
        folder = Path(second.json()["path"])
        assert adapter_hash(folder) == adapter_hash(adapter) == folder.name
    assert len(list((tmp_path / "kept").iterdir())) == KEPT
    answer = bring(client, adapter, "0" * 16)[1]
    assert (answer.status_code, "another content" in answer.text) == (400, True)
    assert not (tmp_path / "kept" / ("0" * 16)).exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_that_comes_later_harms_an_adapter_that_is_here(client: TestClient, tmp_path: Path) -> None:
    adapter, kept = made_adapter(tmp_path / "good", b"good"), tmp_path / "kept"
    digest = adapter_hash(adapter)
    bring(client, adapter, digest)
    before = contents(kept)
    assert len(before) == 2
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        answer = client.put(f"/flywheel/adapters/{digest}/{name}", content=b'{"r": 64}')
        assert (answer.status_code, f"its {name} has another content" in answer.text) == (400, True)
        assert contents(kept) == before
    assert [answer.json()["path"] for answer in bring(client, adapter, digest)] == [str(kept / digest)] * 2


def test_unfinished_adapters_are_few_and_do_not_last(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, kept = made_adapter(tmp_path / "good", b"good"), tmp_path / "kept"
    bring(client, adapter, adapter_hash(adapter))
    for number in range(3 * KEPT):
        client.put(f"/flywheel/adapters/{number:016x}/adapter_config.json", content=b"{}")
    assert len(list((kept / uploads.PARTS).iterdir())) == KEPT
    assert (kept / adapter_hash(adapter)).exists(), "a flood of unfinished ones moves no whole one out"
    monkeypatch.setattr(uploads, "PATIENCE", -60.0)  # as if an hour had passed
    client.put(f"/flywheel/adapters/{'f' * 16}/adapter_config.json", content=b"{}")
    assert [path.name for path in kept.iterdir()] == [adapter_hash(adapter)]


@pytest.mark.parametrize("fault", ["a configuration of a gigabyte", "a full disk", "cut off"])
def test_what_does_not_arrive_leaves_nothing(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    kept, address = tmp_path / "kept", f"/flywheel/adapters/{'a' * 16}/adapter_config.json"
    if fault == "a full disk":

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(uploads.Uploads, "arrived", full)
        answer = client.put(address, content=b"{}")
        assert (answer.status_code, "free space on the server's disk" in answer.text) == (507, True)
    elif fault == "cut off":
        messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        assert asyncio.run(uploads.Uploads(Starlette()).take("a" * 16, "adapter_config.json", receive))[0] == 400
    else:
        assert client.put(address, content=b" " * (2**20 + 1)).status_code == 413
    assert contents(kept) == {}


def test_who_has_no_key_brings_loads_and_asks_nothing(client: TestClient, tmp_path: Path) -> None:
    adapter = made_adapter(tmp_path / "adapter", b"1")
    paths = ("/v1/load_lora_adapter", "/inference/v1/generate", "/v1/unload_lora_adapter", "/invocations")
    assert all(client.post(path).text == "reached" for path in paths)
    others = (
        "/scale_elastic_ep",
        "/adapters",
        "/sleep",
        "/collective_rpc",
        "/v1/load_lora_adapter/",
        "/V1/completions",
    )
    assert all(client.post(path).status_code == 403 for path in others)
    client.headers["Authorization"] = "Bearer another"
    assert [answer.status_code for answer in bring(client, adapter, adapter_hash(adapter))] == [401, 401]
    assert all(client.post(path).status_code == 401 for path in paths)
    client.headers.update({"Authorization": "Bearer a-key", "Host": "evil.example"})
    assert [answer.status_code for answer in bring(client, adapter, adapter_hash(adapter))] == [421, 421]
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    "path",
    [
        "/flywheel/adapters/../../x/adapter_config.json",
        "/flywheel/adapters/0123456789abcdef/..%2f..%2fx",
        "/flywheel/adapters/0123456789abcdef/adapter_model.bin",
        "/flywheel/adapters/0123456789ABCDEF/adapter_config.json",
    ],
)
def test_no_other_file_is_written(client: TestClient, tmp_path: Path, path: str) -> None:
    assert client.put(path, content=b"x").status_code == 403
    assert not (tmp_path / "kept").exists()
