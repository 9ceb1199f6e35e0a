"""Pictures in vLLM's engine: models that see, started without torchvision, and requests whose pictures are read already.

vLLM's classes of these models import transformers' image processors that need torchvision, whose wheels bring a CUDA of
their own and break transformers on a CPU; it is not installed (requirements/overrides.txt). What they import from there is
a function for sizes, and a class that a request of ours never uses: they get those that transformers has for PIL. Each
request carries the numbers of its pictures and where they stand, so vLLM reads no picture and expands no token (0.32).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.pictures import Shown
from steps.core.section import at

if TYPE_CHECKING:
    from addons.pictures.vision import Vision
    from steps.core.params import Policy

MODULES = {  # of vLLM, by the architecture
    "Qwen2_5_VLForConditionalGeneration": "vllm.model_executor.models.qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "vllm.model_executor.models.qwen3_vl",
}
MOST = 64  # pictures of a prompt, as vLLM plans for them


def arguments(policy: Policy, vision: Vision) -> dict[str, Any]:
    """vLLM's arguments for a model that sees. Prepares this process for it."""
    if (at(policy, "tensor_parallel") or 1) > 1:  # its processes would import torchvision
        raise UserError(
            f"policy.tensor_parallel: {policy.base_model} sees pictures, and such models are sampled on one GPU; set it to 1"
        )
    if at(policy, "engine_quantization"):
        name = "quantization" if at(policy, "quantization") else "rollout_quantization"
        raise UserError(
            f"policy.{name}: {policy.base_model} sees pictures, and such models are sampled in their own format; take it out"
        )
    use(vision)
    return {
        "limit_mm_per_prompt": {"image": MOST, "video": 0},
        "skip_mm_profiling": True,  # it would have vLLM's own processor read a picture
        "mm_device_do_normalize": False,  # the numbers are those of the trainer, which are normalised
    }


def use(vision: Vision) -> None:
    """Have vLLM load the model without torchvision."""
    import importlib

    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as pil
    from vllm import ModelRegistry
    from vllm.multimodal.processing import context

    own = {"smart_resize": pil.smart_resize, "Qwen2VLImageProcessor": pil.Qwen2VLImageProcessorPil}
    stand_in("transformers.models.qwen2_vl.image_processing_qwen2_vl", own)
    stand_in(
        "transformers.models.qwen3_vl.video_processing_qwen3_vl",
        {"smart_resize": pil.smart_resize, "Qwen3VLVideoProcessor": object},
    )

    def processor(self: Any, kind: type | None = None, /, **_: Any) -> Any:
        """What vLLM asks at its start: the sizes of pictures. There is none for videos."""
        from transformers.processing_utils import ProcessorMixin

        made: Any = object.__new__(kind or ProcessorMixin)
        made.image_processor = made.video_processor = vision.processor
        made.tokenizer = self.tokenizer
        return made

    context.InputProcessingContext.get_hf_processor = processor
    module = importlib.import_module(MODULES[vision.architecture])
    ModelRegistry.register_model(vision.architecture, getattr(module, vision.architecture))


def stand_in(name: str, names: dict[str, Any]) -> None:
    """A module with these names in place of one that cannot be imported without torchvision."""
    from transformers.utils import is_torchvision_available

    if name not in sys.modules and not is_torchvision_available():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(names)


def prompt(ids: Sequence[int], pictures: Sequence[Shown], vision: Vision) -> dict[str, Any]:
    """A request's prompt with the numbers of its pictures, which have their bytes."""
    import torch
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

    features = [vision.of(each.sha256, each.data) for each in pictures]
    grids = torch.cat([each.grid for each in features])
    joined: Any = {"pixel_values": torch.cat([each.pixels for each in features]), "image_grid_thw": grids}
    fields = {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", grids.prod(-1)),
        "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
    }
    return {
        "type": "multimodal",
        "prompt_token_ids": list(ids),
        "mm_kwargs": MultiModalKwargsItems.from_hf_inputs(joined, fields),
        "mm_hashes": {"image": [each.sha256 for each in pictures]},
        "mm_placeholders": {"image": [PlaceholderRange(offset=each.start, length=each.length) for each in pictures]},
    }
