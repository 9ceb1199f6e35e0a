"""vLLM in this process: one engine, kept for the life of the process, that takes token ids and returns token ids.

Left out on purpose: text, and any server. Each request has a seed of its own, so what is drawn for it does not depend on
the batch in which it runs, nor on whether the process is fresh or warm. Logits do depend on the batch, in their last bits.

    sampler = EngineSampler(policy, adapter, temperature=1.0, max_tokens=64, stop=2)
    sampler.submit(0, prompt_ids, seed=1)
    while sampler.pending: for sampled in sampler.step(): …

`play` plays whole episodes with it, as the stages rollout and evaluate do (steps/sampling/play.py).
"""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import FreshProcessNeeded, UserError
from steps.core.imports import import_lean
from steps.core.ports import bring, every
from steps.core.progress import part, say
from steps.core.section import at
from steps.policy.adapter import adapter_hash
from steps.policy.loading import (
    adapted_layers,
    check_sight,
    config_of,
    explained,
    load_chat,
    load_tokenizer,
    local,
    vision_of,
)
from steps.policy.machine import (
    GPU,
    before_training,
    is_for_gpus,
    keep_few_kernels,
    own_cores,
    preloaded,
    prepare_sampling,
    return_memory,
    use_threads,
)
from steps.sampling import draws_cpu, episodes
from steps.sampling.turns import Limits, Sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from steps.core.params import Policy
    from steps.core.pictures import Shown
    from steps.core.records import Trajectory
    from steps.sampling.job import Job
    from steps.sampling.turns import TurnSampler

# The engine of this process, by policy; at most one. Global, because stages are plain functions, and a warm process keeps
# its engine from one stage to the next instead of starting another.
_engines: dict[str, Engine] = {}
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM accepts as an adapter's largest
COPIES = Path(".flywheel/adapters")  # copies of the adapters in use, by process and content hash


class Engine:
    """vLLM's LLMEngine for one policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.folder = COPIES.absolute() / str(os.getpid())
        self.lora_ids: dict[str, int] = {}  # by adapter hash
        self.asleep = False
        self.llm = self._start()

    def _start(self) -> Any:
        for folder in COPIES.glob("*"):  # clear what ended processes left there
            if not Path(f"/proc/{folder.name}").exists() or folder == self.folder:
                shutil.rmtree(folder)
        import torch

        self.on_gpu = on_gpu = torch.cuda.is_available()
        set_variables(on_gpu)
        if is_for_gpus():
            gpu = bring("gpu", "device", GPU)
            gpu.check_build()
            gpu.check_engine(self.policy)
        if not on_gpu:
            os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, own_cores(self.policy.threads)))
            # vLLM sets OpenMP's threads and leaves MKL's, of which there would be one for each core of the machine, or as
            # many as OMP_NUM_THREADS says: sums would be rounded by it.
            use_threads(self.policy.threads)
        import_lean("vllm.v1.engine.llm_engine")
        from vllm import EngineArgs, LLMEngine
        from vllm.usage.usage_lib import UsageContext

        # Sequences and tokens of a step: on a GPU those of vLLM's own class for batches (1,024 and 16,384 from 70 GB on, 256
        # and 8,192 on smaller cards and A100s); on a CPU 128 and 2,048.
        usage = UsageContext.LLM_CLASS if on_gpu else UsageContext.ENGINE_CONTEXT
        if not on_gpu:
            draws_cpu.use()
            for use in every("operators"):
                use()
            if at(self.policy, "share_weights"):
                bring("sharing", "weights", "policy.share_weights").keep_plain()
        load_tokenizer(self.policy)  # an unknown model fails here with a sentence, not deep inside the engine
        base = local(self.policy)
        with explained(self.policy):
            layers, self.vision = adapted_layers(config_of(base)), vision_of(base)
        if layers and not self.vision and not on_gpu:
            raise UserError(
                f"policy.base_model: {self.policy.base_model} is a mixture of experts, and this build of vLLM serves its "
                "adapters on a GPU alone"
            )
        arguments = EngineArgs(
            model=base.base_model,
            revision=base.revision,
            dtype=self.policy.dtype,
            max_model_len=self.policy.context,
            enable_lora=True,
            max_lora_rank=next(allowed for allowed in RANKS if allowed >= self.policy.lora.rank),
            max_loras=1,
            max_cpu_loras=2,  # of games: the policy's adapter and its opponent's take turns (addons/selfplay/rivals.py)
            lora_target_modules=layers,
            enable_prefix_caching=True,
            enforce_eager=not on_gpu,
            logprobs_mode="processed_logprobs",
            gpu_memory_utilization=self.policy.engine_memory,
            enable_sleep_mode=on_gpu,
            disable_log_stats=True,
            # Without spaces between the parts of JSON, a policy that likes them cannot write them until it is cut off.
            structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
            seed=0,
            **(bring("gpu", "device", GPU).of_engine(self.policy) if at(self.policy, "needs_gpus") else {}),
            **(self.vision.arguments(self.policy) if self.vision else {}),
        )
        with explained(self.policy):
            try:
                return LLMEngine.from_engine_args(arguments, usage_context=usage)
            except (ValueError, RuntimeError) as problem:
                reason = str(problem).strip().splitlines() or [""]
                if not (
                    at(self.policy, "deterministic") and re.search(r"batch[ _-]invarian", str(problem), re.IGNORECASE)
                ):
                    raise
                raise UserError(
                    f"policy.deterministic: vLLM has no kernels of a fixed order for {self.policy.base_model} on this card "
                    f"({reason[0][:200]}); take it out"
                ) from problem

    def lora(self, adapter: Path) -> Any:
        """A request for this adapter. Its name and path contain its content hash, because vLLM caches by them."""
        from vllm.lora.request import LoRARequest

        name = adapter_hash(adapter)
        path = self.folder / name
        if name not in self.lora_ids:
            self.lora_ids[name] = len(self.lora_ids) + 1
            shutil.copytree(adapter, path)
        return LoRARequest(name, self.lora_ids[name], str(path))

    def sleep(self) -> None:
        """Free the GPU's memory for the trainer: of keys and values alone, where the trainer computes with the engine's
        weights. That has not run on a GPU yet."""
        if self.llm.vllm_config.model_config.enable_sleep_mode and not self.asleep:
            is_shared = bool(at(self.policy, "share_weights"))
            self.llm.sleep(level=0 if is_shared else 1)  # at level 0 it pauses, and frees nothing
            if is_shared:
                self.llm.release_kv_cache_memory()
            self.asleep = True

    def wake(self) -> None:
        if self.asleep:
            prepare_sampling()
            self.llm.wake_up()
            self.asleep = False


def set_variables(on_gpu: bool) -> None:
    """Set what vLLM and torch read from the environment as they are imported, or begin to compute.

    vLLM's small compiled functions run as they are: to compile them on the CPU, torch needs a C++ compiler, Python's
    headers, and a path without spaces. Tokens and log probabilities are the same bit for bit without, and the first batch is
    faster.
    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    keep_few_kernels()
    if not on_gpu:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # draws_cpu.py replaces a part of the other
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        os.environ.update(preloaded())


class EngineSampler:
    """A batch of requests to one adapter with one set of sampling parameters, on this process's engine, which is started if
    necessary. Temperature 0 is greedy."""

    def __init__(
        self,
        policy: Policy,
        adapter: Path | None,  # None: the base model alone
        temperature: float,
        max_tokens: int,
        stop: int,
        logit_bias: dict[int, float] | None = None,  # nats, by token id
        opponent: Path | None = None,  # the adapter that plays the other side
    ) -> None:
        engine = get(policy)  # before vLLM is imported: see set_variables and use_invariant_batches
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine.wake()
        engine.llm.reset_prefix_cache()
        self.on_gpu = engine.on_gpu
        self.engine, self.vision = engine.llm, engine.vision
        self.lora = engine.lora(adapter) if adapter is not None else None
        self.opponent = engine.lora(opponent) if opponent is not None else None
        self.keys: dict[str, int] = {}
        self.ranked: dict[str, int] = {}  # requests whose most probable tokens are asked for, and how many of each
        self.sampling = partial(
            SamplingParams,
            temperature=temperature,
            max_tokens=max_tokens,
            stop_token_ids=[stop],
            ignore_eos=True,  # a turn ends with the template's token, not with the model's
            logprobs=0 if temperature > 0 else None,
            detokenize=False,
            logit_bias=logit_bias,
            output_kind=RequestOutputKind.FINAL_ONLY,  # or each step would make an object for each turn under way
        )

    @property
    def pending(self) -> int:
        return len(self.keys)

    def submit(
        self,
        key: int,
        prompt_ids: list[int],
        seed: int,
        limits: Limits | None = None,
        against: bool = False,
        pictures: Sequence[Shown] = (),
    ) -> None:
        """Queue one turn; its result has the same `key`. `seed`, an integer of 63 bits, decides what is drawn. `against`: it
        is the opponent's turn. `pictures`: those among the prompt's tokens, with their bytes. ValueError for what vLLM
        refuses, such as a schema that it does not know."""
        self.keys[str(key)] = key
        if limits and limits.top_logprobs:
            self.ranked[str(key)] = limits.top_logprobs
        prompt: Any = {"prompt_token_ids": prompt_ids}
        if pictures:
            assert self.vision is not None  # a policy without it is shown none (`check_sight`)
            prompt = self.vision.prompt(prompt_ids, pictures)
        draws = {"seed": seed} if self.on_gpu else draws_cpu.seeded(seed)
        more = limits.parameters() if limits else {}
        lora = self.opponent if against else self.lora
        try:
            self.engine.add_request(str(key), prompt, self.sampling(**draws, **more), lora_request=lora)
        except ValueError:
            del self.keys[str(key)]
            self.ranked.pop(str(key), None)
            raise

    def step(self) -> list[Sampled]:
        """Make one engine step; returns the turns that it finished, in the order of their keys."""
        finished = []
        for output in self.engine.step():
            if not output.finished:
                continue
            [best] = output.outputs
            ids = tuple(best.token_ids)
            logprobs = tuple(values[token].logprob for token, values in zip(ids, best.logprobs or (), strict=False))
            count = self.ranked.pop(output.request_id, 0)
            top = tuple(_ranked(values, count) for values in best.logprobs or ()) if count else ()
            finished.append(Sampled(self.keys.pop(output.request_id), ids, logprobs, str(best.finish_reason), top))
        return sorted(finished)


def _ranked(values: Any, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` most probable tokens among vLLM's logprobs of one place, as (id, nats)."""
    ranked = sorted(values.items(), key=lambda item: item[1].rank)
    return tuple((token, value.logprob) for token, value in ranked if value.rank <= count)


def turns(job: Job, stop: int) -> EngineSampler:
    """What samples the turns of a job in this process; `stop` is the token that ends one."""
    opponent = job.opponent.adapter if job.opponent else None
    temperature, max_tokens = job.limits.temperature, job.max_tokens
    return EngineSampler(job.policy, job.adapter, temperature, max_tokens, stop, job.logit_bias, opponent)


def play(job: Job) -> list[Trajectory]:
    """The trajectories of all attempts of a job, in their order: one shard after another."""
    played: list[Trajectory] = []
    for shard in job.shards:
        with part(len(played), len(job.attempts)):
            played += play_shard(shard)
    return played


def play_shard(job: Job, make_sampler: Callable[[Job, int], TurnSampler] = turns) -> list[Trajectory]:
    """The trajectories of all attempts of a job, in their order, sampled as one batch: here, or by what `make_sampler`
    makes."""
    chats = {task: load_chat(job.policy, env) for task, env in (job.env.task_classes or {"": job.env}).items()}
    chat = next(iter(chats.values()))  # all end a turn with the same token
    check_sight(job.policy, (scenario for scenario, _ in job.attempts), chat.vision is not None)
    if job.opponent is not None:
        job.opponent.check(job.env)
    return episodes.play(job, make_sampler(job, chat.end), chats)


def get(policy: Policy) -> Engine:
    """The engine of this policy. FreshProcessNeeded where this process has another policy's engine."""
    import torch

    if is_fixed := at(policy, "deterministic") and torch.cuda.is_available():
        bring("gpu", "device", GPU).use_invariant_batches()
    key = policy.model_dump_json()
    if key not in _engines:
        if _engines:
            raise FreshProcessNeeded("this process samples for another policy already")
        say(f"starting vLLM for {policy.base_model}")
        if is_fixed:
            bring("gpu", "device", GPU).prepare_fixed()
        prepare_sampling()
        _engines[key] = Engine(policy)
        before_training(_engines[key].sleep)
        if at(policy, "share_weights"):
            bring("sharing", "weights", "policy.share_weights").of_engine(policy, _engines[key].llm)
    elif not torch.cuda.is_available():
        return_memory()  # what the stages since then left lies between what stays
    return _engines[key]
