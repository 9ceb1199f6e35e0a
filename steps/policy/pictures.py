"""What a policy makes of pictures: into how many tokens each is read, and the numbers that its vision tower takes.

The families in `FAMILIES` see: a picture is a run of one token, whose number follows from the picture's size. The same
image processor (transformers', on PIL and numpy) serves sampler and trainer, so that both see the same numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from environments.base import Message
from environments.kit import pictures
from steps.core.errors import UserError
from steps.core.pictures import Shown

if TYPE_CHECKING:
    from environments.base import Scenario
    from steps.core.params import Policy

FAMILIES = {"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration", "qwen3_vl": "Qwen3VLForConditionalGeneration"}
KEPT = 2**29  # bytes of pictures' numbers that are kept: those of a batch are asked for again and again


class Features(NamedTuple):
    """A picture as the vision tower takes it."""

    pixels: Any  # [patches, numbers of a patch], float32
    grid: Any  # [1, 3] patches in time (1), height and width


class Vision:
    """The image processor of a model that sees."""

    def __init__(self, processor: Any, token: int, side: int) -> None:
        self.processor, self.token, self.side = processor, token, side  # `side`: patches of a token, in each direction
        self.features: OrderedDict[str, Features] = OrderedDict()
        self.lengths: dict[str, int] = {}

    def of(self, name: str, data: str) -> Features:
        """A picture's numbers, of its SHA-256 and its base64."""
        if name not in self.features:
            made = self.processor(
                images=[pictures.decoded(data)], return_tensors="pt", input_data_format="channels_last"
            )
            self.features[name] = Features(made["pixel_values"], made["image_grid_thw"])
            while len(self.features) > 1 and sum(each.pixels.nbytes for each in self.features.values()) > KEPT:
                self.features.popitem(last=False)
        self.features.move_to_end(name)
        return self.features[name]

    def length(self, name: str, data: str) -> int:
        """Into how many tokens a picture is read."""
        if name not in self.lengths:
            width, height = pictures.decoded(data).size
            self.lengths[name] = self.processor.get_number_of_image_patches(height, width) // self.side**2
        return self.lengths[name]

    def expand(
        self, ids: Sequence[int], messages: Sequence[Message], bytes_of: Mapping[str, str], start: int = 0
    ) -> tuple[list[int], tuple[Shown, ...]]:
        """Token ids with as many tokens for each picture as it is read into, and where they stand, counted from `start`.

        `ids`: with one token for each picture of the messages. ValueError where they have more or fewer.
        """
        names = pictures.hashes(messages)
        places = [place for place, token in enumerate(ids) if token == self.token]
        if len(places) != len(names):
            raise ValueError(
                f"its chat template shows {len(places)} pictures where the messages have {len(names)}: take "
                "policy.chat_template out, or set one that shows pictures, and leave the picture token's name out of texts"
            )
        made: list[int] = []
        shown, done = [], 0
        for place, name in zip(places, names, strict=True):
            made += ids[done:place]
            shown.append(Shown(start + len(made), self.length(name, bytes_of[name]), name))
            made += [self.token] * shown[-1].length
            done = place + 1
        return [*made, *ids[done:]], tuple(shown)


def blind(policy: Policy) -> str:
    """Why a policy is shown no pictures, and what to do: a sentence."""
    if policy.kind != "vllm":
        return f"pictures are shown by policy.kind: vllm alone, and it is {policy.kind}; set it to vllm"
    return (
        f"the policy ({policy.base_model}) sees no pictures; set policy.base_model to a model of the families "
        "Qwen2.5-VL or Qwen3-VL, or leave the pictures out"
    )


def config(policy: Policy) -> Any:
    """transformers' configuration of a base model that it loads (steps.policy.loading.local)."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(policy.base_model, revision=policy.revision, trust_remote_code=False)


def family(policy: Policy) -> str | None:
    """The architecture of a base model that sees, in FAMILIES; None for another, and for a folder without configuration."""
    from transformers import PreTrainedConfig

    fields, _ = PreTrainedConfig.get_config_dict(policy.base_model, revision=policy.revision)
    return FAMILIES.get(fields.get("model_type", ""))


def check(policy: Policy, scenarios: Iterable[Scenario], is_seeing: bool) -> None:
    """UserError where a scenario shows pictures and the policy sees none."""
    if not is_seeing and (shown := next((each for each in scenarios if each.pictures), None)):
        raise UserError(f"scenario {shown.id} shows a picture: {blind(policy)}")


def load(policy: Policy) -> Vision | None:
    """The image processor of the policy's base model; None where it sees no pictures."""
    if family(policy) is None:
        return None
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(
        policy.base_model, revision=policy.revision, backend="pil", trust_remote_code=False
    )
    whole = config(policy)
    return Vision(processor, whole.image_token_id, whole.vision_config.spatial_merge_size)
