"""Random draws for vLLM on the CPU that belong to a request and a position in it, and to nothing else.

vLLM draws a token as the argmax of logits plus Gumbel noise, which on the CPU follows from one number for each row of a
batch. It takes that number from a torch generator for each request, one call after another, and winds the generator back
when a prompt is computed in parts, which torch's generators on the CPU cannot do: the engine stops. Here the number is a
hash of the request's seed and of how many tokens the request has, computed for the whole batch at once, as vLLM's model
runner for CUDA does it (vllm/v1/worker/gpu/sample/gumbel.py). A request names its seed by `seeded` (vLLM 0.32).
"""

from __future__ import annotations

from typing import Any

import numpy as np

SEED = "flywheel_seed"  # of vLLM's `extra_args`, which it passes to the model runner unread
GOLDEN, FIRST, SECOND = (np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def seeded(seed: int) -> dict[str, Any]:
    """The fields of SamplingParams for a request with this seed, an integer of 63 bits."""
    return {"extra_args": {SEED: seed}}


def mix(seeds: Any, positions: Any) -> Any:
    """A number of 63 bits for each pair of a seed and a position, int64 [rows]: SplitMix64 (Steele, Lea and Flood, 2014),
    started at the seed, after as many steps as the position counts, twice, so that neighbours have nothing in common."""
    with np.errstate(over="ignore"):
        state = np.asarray(seeds, np.uint64)
        for steps in (np.asarray(positions, np.uint64), np.uint64(1)):
            state = state + steps * GOLDEN
            state = (state ^ (state >> np.uint64(30))) * FIRST
            state = (state ^ (state >> np.uint64(27))) * SECOND
            state = state ^ (state >> np.uint64(31))
        return (state >> np.uint64(1)).astype(np.int64)


def use() -> None:
    """Let the CPU engines that this process starts from now on draw so for requests that are `seeded`."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    draw_stock = TopKTopPSampler.forward_cpu

    def sample(runner: Any, logits: Any, spec_decode_metadata: Any) -> Any:
        batch, sampler = runner.input_batch, runner.sampler.topk_topp_sampler
        seeds = [(runner.requests[name].sampling_params.extra_args or {}).get(SEED) for name in batch.req_ids]
        positions = batch.num_tokens_no_spec[: len(seeds)]
        sampler.rows = None if None in seeds else torch.from_numpy(mix(seeds, positions))
        output = GPUModelRunner._sample(runner, logits, spec_decode_metadata)
        sampler.rows = None
        return output

    def draw(sampler: Any, logits: Any, generators: Any, k: Any, p: Any) -> Any:
        if sampler.rows is None or k is not None or p is not None:
            return draw_stock(sampler, logits, generators, k, p)
        tokens = torch.ops._C.fused_gumbel_argmax(logits.to(dtype=torch.float32), sampler.rows)
        return tokens, logits.log_softmax(dim=-1, dtype=torch.float32)  # logprobs_mode: processed_logprobs

    TopKTopPSampler.rows = None
    CPUModelRunner._sample = sample
    TopKTopPSampler.forward_cpu = draw
