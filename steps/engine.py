"""vLLM in this process: one engine, kept for the life of the process, that samples token by token ids.

Left out on purpose: text in or out, per-request seeds (vLLM's CPU sampler has none: a batch is seeded as a whole), and any
server. Same batch, same seed, same adapter: same tokens and logprobs, in a fresh process and in a warm one.

    sampler = engine.sampler(policy, adapter, temperature=1.0, max_tokens=64, seed=1)
    sampler.submit(0, prompt_ids)
    while sampler.pending: for done in sampler.step(): …
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.stage import FreshProcessNeeded, UserError, say

if TYPE_CHECKING:
    from steps.params import Policy

_engines: dict[str, Engine] = {}  # at most one
COPIES = Path(".flywheel/adapters")  # of the adapters in use, by process and content hash


class Sampled(NamedTuple):
    """One finished turn."""

    key: int
    completion_ids: tuple[int, ...]  # [C]
    logprobs: tuple[float, ...]  # [C] nats, of the distribution sampled from (temperature included); empty when greedy
    finish_reason: str  # stop or length


def cores() -> list[int]:
    """The processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def use_all_cores() -> None:
    """The same number of threads for torch with and without an engine: sums depend on it."""
    import torch

    threads = max(1, len(cores()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def keep_memory() -> None:
    """Let this process keep what large tensors gave back, where malloc is glibc's.

    glibc returns what is larger than 32 MB to the kernel at once, which makes zeros of its pages when it is asked for the
    next time: up to 30 % of an update at 26 M parameters. Values of mallopt(3) and its header.
    """
    import ctypes

    trim_threshold, top_pad, mmap_max = -1, -2, -4
    with contextlib.suppress(OSError, AttributeError):  # no malloc of that kind
        libc = ctypes.CDLL(None)
        for name, value in ((mmap_max, 0), (trim_threshold, -1), (top_pad, 2**26)):
            libc.mallopt(name, value)


def adapter_hash(folder: Path) -> str:
    """The name of an adapter: a hash of its weights and configuration."""
    digest = hashlib.sha256()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def load_tokenizer(policy: Policy) -> Any:
    """The policy's tokenizer; UserError where the base model cannot be had or has no chat template."""
    from transformers import AutoTokenizer

    with _explained(policy):
        tokenizer = AutoTokenizer.from_pretrained(policy.base_model, revision=policy.revision)
    if not tokenizer.chat_template:
        raise UserError(
            f"policy.base_model: {policy.base_model} has no chat template, so it cannot be told about tools; use an "
            "instruction-tuned model"
        )
    return tokenizer


def load_model(policy: Policy) -> Any:
    """The policy's base model for training, without an adapter."""
    import torch
    from transformers import AutoModelForCausalLM

    with _explained(policy):
        model = AutoModelForCausalLM.from_pretrained(
            policy.base_model, revision=policy.revision, dtype=getattr(torch, policy.dtype)
        )
    return model.to("cuda") if torch.cuda.is_available() else model


def adapted_layers(config: Any) -> list[str] | None:
    """Which layers have the adapter: None for all linear ones; of a mixture of experts those of its attention.

    Experts are fused tensors, which PEFT adapts with ranks of their own and vLLM serves on a GPU at best; vLLM's kernel of
    latent attention folds `kv_b_proj` in, and would leave an adapter of it out.
    """
    config = config.get_text_config()
    if not any(getattr(config, name, None) for name in ("n_routed_experts", "num_experts", "num_local_experts")):
        return None
    latent = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa"] if getattr(config, "kv_lora_rank", None) else []
    return sorted([*latent, "o_proj"] if latent else ["q_proj", "k_proj", "v_proj", "o_proj"])


class _explained:
    """Turns the many ways in which a model cannot be loaded into one sentence."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, problem: BaseException | None, trace: Any) -> None:
        if isinstance(problem, (OSError, ValueError, RuntimeError, KeyError)):
            reason = str(problem).strip().splitlines()[0][:200] if str(problem).strip() else kind.__name__
            raise UserError(
                f"policy.base_model: cannot load {self.policy.base_model!r} ({reason}); "
                "give a folder that holds a model, or the name of one on the Hugging Face Hub that this machine can reach"
            ) from problem


class Engine:
    """vLLM's LLMEngine and what it was made for."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.folder = COPIES.absolute() / str(os.getpid())
        self.known: dict[str, int] = {}
        self.asleep = False
        self.llm = self._start()

    def _start(self) -> Any:
        for left in COPIES.glob("*"):  # by processes that are gone
            if not Path(f"/proc/{left.name}").exists() or left == self.folder:
                shutil.rmtree(left)
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores())))
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        import torch
        from transformers import AutoConfig
        from vllm import EngineArgs, LLMEngine

        on_gpu = torch.cuda.is_available()
        if not on_gpu:
            from steps import lora_cpu

            lora_cpu.use()
        load_tokenizer(self.policy)  # an unknown model fails here in one sentence, not deep inside the engine
        with _explained(self.policy):
            layers = adapted_layers(AutoConfig.from_pretrained(self.policy.base_model, revision=self.policy.revision))
        if layers and not on_gpu:
            raise UserError(
                f"policy.base_model: {self.policy.base_model} is a mixture of experts, and this build of vLLM serves its "
                "adapters on a GPU alone"
            )
        arguments = EngineArgs(
            model=self.policy.base_model,
            revision=self.policy.revision,
            dtype=self.policy.dtype,
            max_model_len=self.policy.context,
            enable_lora=True,
            max_lora_rank=_allowed_rank(self.policy.lora.rank),
            max_loras=1,
            lora_target_modules=layers,
            enable_prefix_caching=True,
            enforce_eager=not on_gpu,
            logprobs_mode="processed_logprobs",
            gpu_memory_utilization=self.policy.gpu_memory,
            enable_sleep_mode=on_gpu,
            disable_log_stats=True,
            seed=0,
        )
        with _explained(self.policy):
            return LLMEngine.from_engine_args(arguments)

    def lora(self, adapter: Path) -> Any:
        """A request for this adapter. Name and path hold its content hash: vLLM caches by them."""
        from vllm.lora.request import LoRARequest

        name = adapter_hash(adapter)
        path = self.folder / name
        if name not in self.known:
            self.known[name] = len(self.known) + 1
            shutil.copytree(adapter, path)
        return LoRARequest(name, self.known[name], str(path))

    def sleep(self) -> None:
        """Give the GPU's memory to the trainer."""
        if self.llm.vllm_config.model_config.enable_sleep_mode and not self.asleep:
            self.llm.sleep(level=1)
            self.asleep = True

    def wake(self) -> None:
        if self.asleep:
            self.llm.wake_up()
            self.asleep = False


class Sampler:
    """A batch of requests to one adapter with one set of sampling parameters."""

    def __init__(
        self, engine: Engine, adapter: Path, temperature: float, max_tokens: int, stop: int, seed: int
    ) -> None:
        import torch
        from vllm import SamplingParams

        engine.wake()
        engine.llm.reset_prefix_cache()
        self.engine = engine.llm
        self.lora = engine.lora(adapter)
        self.keys: dict[str, int] = {}
        self.sampling = SamplingParams(
            temperature=temperature,
            max_tokens=max_tokens,
            stop_token_ids=[stop],
            ignore_eos=True,  # the template's own end of turn decides
            logprobs=0 if temperature > 0 else None,
            detokenize=False,
        )
        torch.manual_seed(seed)

    @property
    def pending(self) -> int:
        return len(self.keys)

    def submit(self, key: int, prompt_ids: list[int]) -> None:
        """Queue one turn; `key` comes back with it."""
        self.keys[str(key)] = key
        prompt: Any = {"prompt_token_ids": prompt_ids}
        self.engine.add_request(str(key), prompt, self.sampling, lora_request=self.lora)

    def step(self) -> list[Sampled]:
        """One engine step; the turns that it finished, in the order of their keys."""
        done = []
        for output in self.engine.step():
            if not output.finished:
                continue
            [best] = output.outputs
            ids = tuple(best.token_ids)
            logprobs = tuple(found[token].logprob for token, found in zip(ids, best.logprobs or (), strict=False))
            done.append(Sampled(self.keys.pop(output.request_id), ids, logprobs, str(best.finish_reason)))
        return sorted(done)


def sampler(policy: Policy, adapter: Path, temperature: float, max_tokens: int, stop: int, seed: int) -> Sampler:
    """A sampler on this process's engine, which is started if need be. Temperature 0 is greedy."""
    return Sampler(get(policy), adapter, temperature, max_tokens, stop, seed)


def get(policy: Policy) -> Engine:
    """The engine of this policy."""
    key = policy.model_dump_json()
    if key not in _engines:
        if _engines:
            raise FreshProcessNeeded("this process samples for another policy already")
        say(f"starting vLLM for {policy.base_model}")
        _engines[key] = Engine(policy)
    return _engines[key]


def sleep_all() -> None:
    """Before training on a GPU."""
    for engine in _engines.values():
        engine.sleep()


def _allowed_rank(rank: int) -> int:
    """vLLM takes these values alone for its largest rank."""
    return next(allowed for allowed in (8, 16, 32, 64, 128, 256, 320, 512) if allowed >= rank)
