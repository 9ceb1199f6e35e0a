"""What a message, or what stands around it, says of how it is learnt: whether at all, and whether its end is its model's.

Both become a mark of the assistant's message: `weight` 0 for a turn that is shown and not learnt, and `finish_reason` for
one that was cut off, whose end is not learnt. A turn without marks is learnt whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from environments.base import Message

# Whether a turn is learnt: OpenAI's name, Mistral's and Together's; Axolotl's; …
WEIGHTS = ("weight", "train", "training", "loss")
PARTIAL = ("train_detail", "training_detail", "loss_mask", "weights")  # marks of a turn's parts
# How a turn ended: OpenAI's and OpenTelemetry's name, Anthropic's, Gemini's and Vercel's, Bedrock's, Ollama's.
ENDS = ("finish_reason", "stop_reason", "finishReason", "stopReason", "done_reason")
AROUND = ("response_metadata", "generation_info")  # in which LangChain has them
ENDED = ("", "1", *"stop end_turn tool_call tool_calls tool_use function_call eos eos_token complete completed".split())


def is_learnt(fields: Mapping[str, Any]) -> bool:
    """Whether a turn or a line is to be learnt. ValueError for a weight that is neither 0 nor 1, and for marks of parts."""
    partial = [name for name in PARTIAL if fields.get(name) is not None]
    given = [str(fields[name]).lower() for name in WEIGHTS if fields.get(name) is not None]
    if partial or any(word not in ("0", "0.0", "false", "1", "1.0", "true") for word in given):
        raise ValueError(f"a turn is learnt whole or not at all, and {(*partial, 'a weight')[0]} asks for a part of it")
    return not any(word in ("0", "0.0", "false") for word in given)


def cut_off(fields: Mapping[str, Any]) -> str:
    """Why a turn has no end that its model wrote, as "length" or "other"; empty where it has, or where nothing says so."""
    around = (fields[name] for name in AROUND if isinstance(fields.get(name), Mapping))
    given = [next((each[name] for name in ENDS if each.get(name) is not None), "") for each in (fields, *around)]
    words = [re.sub("[^a-z0-9]+", "_", str(word).lower().rpartition(".")[2]).strip("_") for word in given]
    words += ["incomplete"] if fields.get("status") == "incomplete" else []  # OpenAI's Responses
    cut = next((word for word in words if word not in ENDED), "")
    return cut and ("length" if re.search("len|max|limit|incomplete", cut) else "other")


def marked(messages: list[Message], fields: Mapping[str, Any]) -> list[Message]:
    """The messages, with the marks that these fields set: the assistant's turns with `weight`, the last with
    `finish_reason`."""
    turns = [message for message in messages if message["role"] == "assistant"]
    for turn in turns if turns and not is_learnt(fields) else ():
        turn["weight"] = 0
    if turns and (cut := cut_off(fields)):
        turns[-1]["finish_reason"] = cut
    return messages
