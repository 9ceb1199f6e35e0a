"""vLLM's server for runs with `policy.kind: server`: started here with what sampling needs, or its command printed.

    python -m addons.fleet.vllm_server                       # http://127.0.0.1:8000, for params.yaml (`make vllm-server`)
    python -m addons.fleet.vllm_server --host 10.0.0.5  # for other machines: over plain HTTP, so only in a network you trust
    python -m addons.fleet.vllm_server --print          # the command alone, for a machine with vLLM and without this project

The key is made once, in .flywheel/vllm-server.key; the flow gets it in the variable that `policy.servers.key_env` names.
Everything but /health asks for it. Adapters come over HTTP (addons/fleet/uploads.py), or from a folder
that both see (`policy.servers.adapters`). Two servers on one machine without GPUs: give each cores of its own (`taskset
-c 1 make …`).
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

from addons.fleet import uploads
from flows.deployment.services import Services, plain
from flows.terminal.command import stop_once
from steps.core import dotenv, params
from steps.core.keys import key
from steps.core.params import Policy
from steps.core.ports import bring
from steps.core.progress import say
from steps.core.section import at
from steps.core.terminal import served
from steps.kit import vllm_guard as guard
from steps.policy.loading import local
from steps.policy.machine import GPU, own_cores, preloaded
from steps.policy.served import HOST, LIMITED_SERVER, PORT, RANKS, SERVER, checked_host, of_every_server

KEY = Path(".flywheel/vllm-server.key")
VLLMS = (
    "VLLM_ HF_ TORCH TRITON_ CUDA_ NVIDIA_ NCCL_ MKL_ KMP_ LD_ http_proxy https_proxy HTTP_PROXY HTTPS_PROXY".split()
)
WORKER = "steps.sampling.worker_cpu.Worker"
ADAPTERS = 2  # in one batch: a rollout with one and an evaluation with another
SPARE = 8  # adapters in memory


def options(policy: Policy, on_gpu: bool) -> list[str]:
    """vLLM's options, as steps/sampling/engine.py sets them in process."""
    base = local(policy)
    words = ["--model", base.base_model, "--served-model-name", policy.base_model, "--dtype", policy.dtype]
    words += ["--revision", base.revision] if base.revision else []
    words += ["--max-model-len", str(policy.context), "--generation-config", "vllm"]
    rank = next(rank for rank in RANKS if rank >= policy.lora.rank)
    words += f"--enable-lora --max-lora-rank {rank} --max-loras {ADAPTERS} --max-cpu-loras {SPARE}".split()
    words += ["--logprobs-mode", "processed_logprobs", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    words += ["--enable-scale-out"]  # /inference/v1/generate
    words += ["--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}']
    words += ["--gpu-memory-utilization", str(policy.engine_memory)]
    words += bring("gpu", "device", GPU).of_server(policy) if at(policy, "needs_gpus") else []
    return words if on_gpu else [*words, "--enforce-eager", "--worker-cls", WORKER]


def variables(policy: Policy, on_gpu: bool) -> dict[str, str]:
    """The variables of vLLM's process but the key."""
    ours = of_every_server()
    if on_gpu:
        return ours | ({"VLLM_BATCH_INVARIANT": "1"} if at(policy, "deterministic") else {})
    cores = ",".join(map(str, own_cores(policy.threads)))
    return ours | {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_USE_V2_MODEL_RUNNER": "0", "TORCHDYNAMO_DISABLE": "1"}


def command(policy: Policy, host: str, port: int, on_gpu: bool) -> list[str]:
    """The command line of vLLM's server, after `python -m`."""
    guarded = ["--middleware", f"{uploads.__name__}.{uploads.Uploads.__name__}"]
    return [LIMITED_SERVER, "--host", host, "--port", str(port), *guarded, *options(policy, on_gpu)]


def environment(policy: Policy, host: str, port: int, secret: str, folder: Path, on_gpu: bool) -> dict[str, str]:
    """All variables of vLLM's process. `folder`: where adapters are kept that come over HTTP."""
    guarded = {guard.KEY: secret, guard.SWAP_TOKEN: secret, guard.HOST: host, uploads.FOLDER: str(folder)}
    return plain(os.environ, *VLLMS) | preloaded() | variables(policy, on_gpu) | guarded


def printed(policy: Policy, host: str, port: int) -> str:
    """A shell command for a machine with a GPU and vLLM, and without this project. Adapters come from a shared folder."""
    given = {name: value for name, value in variables(policy, True).items() if name != "DO_NOT_TRACK"}
    settings = " ".join(f"{name}={value}" for name, value in given.items())
    words = shlex.join(["--host", host, "--port", str(port), *options(policy, True)])
    return f'VLLM_API_KEY="$(cat key)" {settings} python -m {SERVER} {words}'


def serve(root: Path, host: str, port: int) -> None:
    """Start the server, and wait until it ends or Ctrl-C. UserError where it does not start."""
    policy = params.load("params.yaml", params.RolloutParams).policy
    import torch

    folder = root / ".flywheel" / "vllm-server" / str(port)
    shutil.rmtree(folder, ignore_errors=True)
    on_gpu = torch.cuda.is_available()
    secret = os.environ.get(guard.KEY, "").strip() or key(root / KEY, user="")
    variables = environment(policy, checked_host(host), port, secret, folder, on_gpu)
    name = f"vllm-server-{port}"
    with Services(root / ".flywheel", variables) as services:
        say(f"starting vLLM with {policy.base_model} …")
        services.start(name, *command(policy, host, port, on_gpu))
        page = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        services.wait(name, f"{page}/health")
        say(f"sampling at {page}, key in {KEY}; Ctrl-C stops it")
        services.watch()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m addons.fleet.vllm_server", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--host", default=HOST, help=f"the address to listen at (default: {HOST})")
    parser.add_argument("--port", type=int, default=PORT, help=f"(default: {PORT})")
    parser.add_argument(
        "--print", action="store_true", help="print the command for stock vLLM on a GPU, and start nothing"
    )
    given = parser.parse_args(words)
    stop_once()
    dotenv.load(Path.cwd())
    if given.print:
        policy = params.load("params.yaml", params.RolloutParams).policy
        print(printed(policy, given.host, given.port))
        return 0
    return served(lambda: serve(Path.cwd(), given.host, given.port))


if __name__ == "__main__":
    sys.exit(main())
