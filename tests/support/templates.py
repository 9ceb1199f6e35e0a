"""Real chat templates of model families, with toy tokenizers that have the families' real special tokens.

The words of a toy tokenizer are the embedded policy's (a byte-level BPE, so it can write any text). Real tokenizers cannot
be had without the Hub; their merges do not matter here, because templates and parsers work on text and on special tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from steps.core.ports import bring, names

HERE = Path(__file__).parent / "chat_templates"
EMBEDDED = Path(__file__).parent.parent.parent / "tasks_data" / "embedded_policy"

TEMPLATES: dict[str, str] = {name: bring("template", name, "policy.chat_template") for name in names("template")}


class Family(NamedTuple):
    template: str  # a file of TRL's, or of this folder
    tool_parser: str
    reasoning_parser: str | None
    end: str  # the token that ends a turn
    bos: str = ""
    special: tuple[str, ...] = ()
    added: tuple[str, ...] = ()  # tokens of their own that the family's tokenizer does not call special
    calls: int = 3  # the most in one turn
    has_words: bool = True  # the template shows words beside calls


_QWEN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_LLAMA = ("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>")
_KIMI = ("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "[EOS]")
_KIMI_CALLS = (
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
    *("<|tool_call_argument_begin|>", "<think>", "</think>"),
)
_MISTRAL = tuple(
    f"[{name}]" for name in "INST /INST AVAILABLE_TOOLS /AVAILABLE_TOOLS TOOL_RESULTS /TOOL_RESULTS".split()
)
_LLAMA_3 = Family("", "llama3_json", None, "<|eot_id|>", "<|begin_of_text|>", _LLAMA, calls=1, has_words=False)
FAMILIES = {
    "qwen2.5": Family("qwen2_5", "hermes", None, "<|im_end|>", added=_QWEN[2:4]),
    "qwen3": Family("qwen3", "hermes", "qwen3", "<|im_end|>", added=_QWEN),
    "qwen3-2507": Family("qwen3_instruct_2507", "hermes", None, "<|im_end|>", added=_QWEN),
    "qwen3.5": Family("qwen3_5_think", "qwen3_coder", "qwen3", "<|im_end|>", added=_QWEN),
    "qwen3.5-small": Family("qwen3_5_nothink", "qwen3_coder", None, "<|im_end|>", added=_QWEN),
    "qwen3.6": Family("qwen3_6", "qwen3_coder", "qwen3", "<|im_end|>", added=_QWEN),
    "llama3.1": _LLAMA_3._replace(template="llama3_1"),
    "llama3.2": _LLAMA_3._replace(template="llama3_2"),
    "kimi-k2": Family("kimi_k2", "kimi_k2", None, "<|im_end|>", "[BOS]", _KIMI, _KIMI_CALLS),
    "kimi-k2-thinking": Family("kimi_k2_thinking", "kimi_k2", "kimi_k2", "<|im_end|>", "[BOS]", _KIMI, _KIMI_CALLS),
    "mistral-nemo": Family(
        "mistral_nemo", "mistral", None, "</s>", "<s>", (*_MISTRAL, "[TOOL_CALLS]"), has_words=False
    ),
}


def template(name: str) -> str:
    """The text of a template of this folder, or of those that TRL ships."""
    import trl

    own = HERE / f"{name}.jinja"
    return (own if own.is_file() else Path(trl.__file__).parent / "chat_templates" / own.name).read_text()


def tokenizer(family: Family, text: str | None = None) -> Any:
    """A toy tokenizer with the family's special tokens and its chat template, or another one's text."""
    from tokenizers import AddedToken
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(EMBEDDED)
    special = [name for name in (family.bos, family.end, *family.special) if name]
    made.add_special_tokens({"additional_special_tokens": special})
    made.add_tokens([AddedToken(name, special=False, normalized=False) for name in family.added])
    made.eos_token = family.end
    if family.bos:
        made.bos_token = family.bos
    made.chat_template = template(family.template) if text is None else text
    return made
