"""Serve: vLLM's OpenAI server with the champion; when the alias moves, the adapter is swapped without a restart.

    python -m flows.serve                          # http://127.0.0.1:8000/v1, model: the registry's name (`make serve`)
    python -m flows.serve --alias challenger --port 8001

The key that clients need is made once, in .flywheel/serve.key. What is served says /v1/models: the adapter's folder bears
its content's hash.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from flows.deployment.services import Services, key
from flows.terminal.command import stop_once
from steps.core import dotenv, params
from steps.core.errors import UserError
from steps.core.progress import say
from steps.core.terminal import exit_code
from steps.registry.model import fetched, policy_of, read_registry

KEY = Path(".flywheel/serve.key")
SERVED = Path(".flywheel/served")  # adapters, by their hash


def adapter_of(root: Path, known: params.RegisterParams, alias: str) -> tuple[Any, Path]:
    """(version, folder) that the alias names now."""
    registry = read_registry(root, known.model)
    version = registry.version(alias)
    return version, fetched(registry, version, root / SERVED / str(version.tags["adapter_hash"]))


def command(known: params.RegisterParams, version: Any, adapter: Path, port: int) -> list[str]:
    """The server's own."""
    policy = policy_of(version, adapter, known.policy)
    words = ["vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--model", policy.base_model, "--dtype", policy.dtype, "--max-model-len", str(policy.context)]
    words += ["--served-model-name", f"{known.model}-base", "--enable-lora", "--max-lora-rank", _rank(policy.lora.rank)]
    words += ["--lora-modules", f"{known.model}={adapter}", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    words += ["--gpu-memory-utilization", str(policy.gpu_memory)]
    return words + (["--revision", policy.revision] if policy.revision else [])


def _rank(rank: int) -> str:
    """The smallest that vLLM is built for."""
    return str(next(known for known in (8, 16, 32, 64, 128, 256, 320, 512) if known >= rank))


def swap(port: int, name: str, adapter: Path, token: str) -> None:
    """Have the running server take up another adapter under the same name."""
    body = json.dumps({"lora_name": name, "lora_path": str(adapter), "load_inplace": True}).encode()
    known = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/load_lora_adapter", body, known)
    try:
        urllib.request.urlopen(request, timeout=120).close()
    except urllib.error.HTTPError as problem:
        raise UserError(
            f"the server does not take {adapter}: {problem.read().decode(errors='replace')[:300]}"
        ) from None


def serve(root: Path, alias: str, port: int, seconds: float) -> None:
    """Start the server and follow the alias until Ctrl-C."""
    known = params.load("params.yaml", params.RegisterParams)
    version, adapter = adapter_of(root, known, alias)
    token = key(root / KEY, user="")
    own = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_API_KEY": token,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    with Services(root / ".flywheel", os.environ | own) as services:
        say(f"starting vLLM with {known.model} version {version.version} …")
        services.start("serve", *command(known, version, adapter, port))
        services.wait("serve", f"http://127.0.0.1:{port}/health")
        say(
            f"serving: http://127.0.0.1:{port}/v1, model {known.model}, key in {KEY}; following @{alias}; Ctrl-C stops it"
        )
        while services.running["serve"].poll() is None:
            time.sleep(seconds)
            try:
                latest, adapter = adapter_of(root, known, alias)
            except UserError as problem:  # a registry that is away stops nobody from being served
                say(f"the registry was not read: {problem}")
                continue
            if latest.tags["adapter_hash"] != version.tags["adapter_hash"]:
                swap(port, known.model, adapter, token)
                say(f"now serving version {latest.version} in place of {version.version}")
            version = latest
        raise UserError(f"vLLM ended by itself: see {root / '.flywheel' / 'serve.log'}")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.serve", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--alias", default="champion", help="of the registry (default: champion)")
    parser.add_argument("--seconds", type=float, default=10.0, help="between two looks at the alias")
    options = parser.parse_args(words)

    stop_once()
    dotenv.load(Path.cwd())
    return exit_code(lambda: serve(Path.cwd(), options.alias, options.port, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
