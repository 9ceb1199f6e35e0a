"""An adapter on the CPU, for vLLM: one matrix product where vLLM's own operators gather a copy of the weights per token.

vLLM serves many adapters at a time; its CPU operators pay for that even when all tokens have the same one, which is the
only case here, and take two thirds of an engine step then. The mathematics is the same; mixed batches go vLLM's way.
Imported by vLLM, by the name that `use` gives it (vLLM 0.32).
"""

from __future__ import annotations

from typing import Any

from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


class OneAdapter(PunicaWrapperCPU):
    """vLLM's wrapper, with a short way for batches whose tokens all have the adapter in slot 0."""

    one = False
    enabled = True

    def update_metadata(self, *arguments: Any, **more: Any) -> None:
        super().update_metadata(*arguments, **more)
        self.one = self.enabled and not bool(self.token_lora_indices.any())  # 0 is the slot, -1 is none

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
        if not self.one:
            super().add_lora_linear(y, x, lora_a_stacked, lora_b_stacked, scale, output_slices, **more)
            return
        start = 0
        for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            y[:, start : start + width].addmm_(x @ a[0, 0].T, b[0, 0].T, alpha=scale)
            start += width


def use() -> None:
    """From now on, engines of this process adapt linear layers this way on the CPU."""
    from vllm.platforms import current_platform

    type(current_platform).get_punica_wrapper = classmethod(lambda _: f"{__name__}.OneAdapter")
