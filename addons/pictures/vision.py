"""What a policy makes of pictures: into how many tokens each is read, and the numbers that its vision tower takes.

The families in `FAMILIES` see: a picture is a run of one token, whose number follows from the picture's size. The same
image processor (transformers', on PIL and numpy) serves sampler and trainer, so that both see the same numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.pictures import engine, rows
from environments.base import Message
from environments.kit import pictures
from steps.core.pictures import Shown

if TYPE_CHECKING:
    from steps.core.params import Policy
    from steps.core.records import Row

FAMILIES = {"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration", "qwen3_vl": "Qwen3VLForConditionalGeneration"}
KEPT = 2**29  # bytes of pictures' numbers that are kept: those of a batch are asked for again and again


class Features(NamedTuple):
    """A picture as the vision tower takes it."""

    pixels: Any  # [patches, numbers of a patch], float32
    grid: Any  # [1, 3] patches in time (1), height and width


class Vision:
    """The image processor of a model that sees."""

    def __init__(self, architecture: str, processor: Any, token: int, side: int) -> None:
        self.architecture = architecture
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

    def arguments(self, policy: Policy) -> dict[str, Any]:
        """vLLM's arguments for the model, for which this process is prepared."""
        return engine.arguments(policy, self)

    def prompt(self, ids: Sequence[int], shown: Sequence[Shown]) -> dict[str, Any]:
        """A request's prompt for vLLM, with the numbers of its pictures, which have their bytes."""
        return engine.prompt(ids, shown, self)

    def layout(self, shown: Sequence[Row]) -> rows.Layout:
        """Where rows show pictures, before they are packed."""
        return rows.layout(shown, self)


def load(policy: Policy) -> Vision:
    """The image processor of a base model of FAMILIES that transformers loads (steps.policy.loading.local)."""
    from transformers import AutoConfig, AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(
        policy.base_model, revision=policy.revision, backend="pil", trust_remote_code=False
    )
    whole = AutoConfig.from_pretrained(policy.base_model, revision=policy.revision, trust_remote_code=False)
    return Vision(FAMILIES[whole.model_type], processor, whole.image_token_id, whole.vision_config.spatial_merge_size)
