"""vLLM's worker on a CPU server (addons/fleet/vllm_server.py), so that a reply is a function of its request and its
adapter alone.

Stock vLLM on a CPU rounds a sum otherwise with other requests in the batch, and cannot draw by a request's seed. Here:

- Products of matrices are made in blocks of rows (blocks_cpu.py), an adapter's for its own rows where a batch has several.
- Attention does not divide a sequence's keys among threads, which it would do by the whole batch's lengths.
- Random draws belong to a request's seed and a position (steps/sampling/draws_cpu.py).

Which replica answers, beside what, before or after a restart, does not change a bit then. It costs nothing where tokens are
sampled and a third of the speed at which prompts are read (48 prompts of up to 600 tokens: 1.04 s, and 0.77 s by stock
vLLM). On a GPU VLLM_BATCH_INVARIANT does the same, and this module is not used. vLLM imports it by name (vLLM 0.32).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any

from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.v1.worker.cpu_worker import CPUWorker

from steps.sampling import draws_cpu
from steps.sampling.blocks_cpu import in_blocks


class BlockedAdapters(PunicaWrapperCPU):
    """vLLM's wrapper of adapters, with products in blocks, each adapter's for its own rows."""

    groups: tuple[tuple[int, Any], ...] = ()  # (slot, its rows; None: all of them)

    def update_metadata(self, *arguments: Any, **more: Any) -> None:
        super().update_metadata(*arguments, **more)
        slots = self.token_lora_indices  # [tokens] -1: no adapter
        present = [int(slot) for slot in slots.unique() if slot >= 0]
        is_one = len(present) == 1 and not bool((slots < 0).any())
        self.groups = tuple((slot, None if is_one else (slots == slot).nonzero().flatten()) for slot in present)

    def add_lora_linear(
        self,
        y: Any,  # [tokens, out], changed in place
        x: Any,  # [tokens, in]
        lora_a_stacked: tuple[Any, ...],  # [slots, 1, rank, in] for each slice of the output
        lora_b_stacked: tuple[Any, ...],  # [slots, 1, width of the slice, rank]
        scale: float,
        output_slices: tuple[int, ...],
        **more: Any,
    ) -> None:
        for slot, rows in self.groups:
            start = 0
            for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                down, up = a[slot, 0].T, b[slot, 0].T

                def product(block: Any, down: Any = down, up: Any = up) -> Any:
                    return (block @ down) @ up

                added = in_blocks(x if rows is None else x[rows], product) * scale
                if rows is None:
                    y[:, start : start + width] += added
                else:
                    y[rows, start : start + width] += added
                start += width


class Worker(CPUWorker):
    """vLLM's worker on a CPU, whose results do not depend on the batch."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        from vllm.platforms import current_platform

        os.environ["VLLM_CPU_ATTN_SPLIT_KV"] = "0"
        draws_cpu.use()
        type(current_platform).get_punica_wrapper = classmethod(lambda _: f"{__name__}.{BlockedAdapters.__name__}")
        super().__init__(*arguments, **more)

    def load_model(self, *arguments: Any, **more: Any) -> None:
        super().load_model(*arguments, **more)
        for layer in self.model_runner.model.modules():
            if hasattr(layer, "cpu_linear"):
                layer.cpu_linear = _blocked(layer.cpu_linear)

    def execute_model(self, scheduler_output: Any) -> Any:
        """vLLM's step. A request's seed goes to draws_cpu.py: vLLM's own generators fail on a CPU. One without a seed gets a
        random one, because otherwise vLLM would draw the whole batch in another way."""
        for request in scheduler_output.scheduled_new_reqs:
            sampling = request.sampling_params
            if sampling is not None:
                seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
                sampling.extra_args = (sampling.extra_args or {}) | draws_cpu.seeded(seed)["extra_args"]
                sampling.seed = None
        return super().execute_model(scheduler_output)


def _blocked(linear: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, weight, bias: in_blocks(x, lambda block: linear(block, weight, bias))
