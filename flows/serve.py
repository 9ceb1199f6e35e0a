"""Serve: vLLM's OpenAI server with the champion; when the alias moves, the adapter is swapped without a restart.

    python -m flows.serve                          # http://127.0.0.1:8000/v1, model: the registry's name (`make serve`)
    python -m flows.serve --alias challenger --port 8001

The key that clients need is made once, in .flywheel/serve.key. /v1/models shows what is served: the adapter's folder is
named by the hash of its content.
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
from steps.core.terminal import served
from steps.registry.model import fetched, policy_of, read_registry

KEY = Path(".flywheel/serve.key")
SERVED = Path(".flywheel/served")  # adapters, by their hash


def adapter_of(root: Path, settings: params.RegisterParams, alias: str) -> tuple[Any, Path]:
    """(the version that the alias names now, the folder of its adapter)."""
    model = read_registry(root, settings.model)
    version = model.version(alias)
    return version, fetched(model, version, root / SERVED / str(version.tags["adapter_hash"]))


def command(settings: params.RegisterParams, version: Any, adapter: Path, port: int) -> list[str]:
    """The command line of vLLM's server, after `python -m`."""
    policy = policy_of(version, adapter, settings.policy)
    words = ["vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--model", policy.base_model, "--dtype", policy.dtype, "--max-model-len", str(policy.context)]
    words += ["--served-model-name", f"{settings.model}-base", "--lora-modules", f"{settings.model}={adapter}"]
    supported = (8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's ranks, of which the smallest that is large enough is set
    rank = next(rank for rank in supported if rank >= policy.lora.rank)
    words += ["--enable-lora", "--max-lora-rank", str(rank)]
    words += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    words += ["--gpu-memory-utilization", str(policy.gpu_memory)]
    return words + (["--revision", policy.revision] if policy.revision else [])


def swap(port: int, name: str, adapter: Path, token: str) -> None:
    """Have the running server load another adapter under the same name. UserError where it refuses."""
    body = json.dumps({"lora_name": name, "lora_path": str(adapter), "load_inplace": True}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/load_lora_adapter", body, headers)
    try:
        urllib.request.urlopen(request, timeout=120).close()
    except urllib.error.HTTPError as problem:
        answer = problem.read().decode(errors="replace")
        raise UserError(f"the server refuses {adapter}: {answer[:300]}") from None


def serve(root: Path, alias: str, port: int, seconds: float) -> None:
    """Start the server and follow the alias, looked up every `seconds`, until Ctrl-C."""
    settings = params.load("params.yaml", params.RegisterParams)
    version, adapter = adapter_of(root, settings, alias)
    token = key(root / KEY, user="")
    own = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_API_KEY": token}
    own |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with Services(root / ".flywheel", os.environ | own) as services:
        say(f"starting vLLM with {settings.model} version {version.version} …")
        services.start("serve", *command(settings, version, adapter, port))
        services.wait("serve", f"http://127.0.0.1:{port}/health")
        page = f"http://127.0.0.1:{port}/v1"
        say(f"serving: {page}, model {settings.model}, key in {KEY}; following @{alias}; Ctrl-C stops it")
        while services.running["serve"].poll() is None:
            time.sleep(seconds)
            try:
                latest, adapter = adapter_of(root, settings, alias)
            except UserError as problem:  # an unreachable registry does not end the serving
                say(f"the registry was not read: {problem}")
                continue
            if latest.tags["adapter_hash"] != version.tags["adapter_hash"]:
                swap(port, settings.model, adapter, token)
                say(f"now serving version {latest.version} in place of {version.version}")
            version = latest
        raise UserError(f"vLLM ended: see {root / '.flywheel' / 'serve.log'}")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.serve", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--alias", default="champion", help="the alias to follow (default: champion)")
    parser.add_argument("--seconds", type=float, default=10.0, help="between two look-ups of the alias (default: 10)")
    options = parser.parse_args(words)

    stop_once()
    dotenv.load(Path.cwd())
    return served(lambda: serve(Path.cwd(), options.alias, options.port, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
