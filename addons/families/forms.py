"""How families of models write tool calls: forms that are found in chat templates, by the name of vLLM's tool parser."""

from __future__ import annotations

from steps.policy.formats import NINE_LETTERS, Format

QWEN3_CODER = Format(  # Qwen3-Coder, Qwen3.5 and later, Nemotron 3
    r"<tool_call>\s*<function=",
    r"<tool_call>(?:\s*<function=)?|<function=",
    r"</function>",
    "a tool call must be <function=…> with a <parameter=…> … </parameter> for each argument and </function>, between "
    "<tool_call> and </tool_call>",
    "between <tool_call> and </tool_call>",
)
KIMI_K2 = Format(
    r"<\|tool_call_begin\|>",
    r"<\|tool_call_begin\|>|<\|tool_calls_section_begin\|>(?!\s*<\|tool_call_begin\|>)",
    r"<\|tool_call_end\|>",
    "a tool call must be complete: functions.name:number, then the arguments as an object in valid JSON",
    "in a section of tool calls",
    r"<\|tool_call_begin\|>\s*(functions\.[^\s:<]+:\d+)",
    "functions.{name}:{place}",
)
MISTRAL = Format(
    r"\[TOOL_CALLS\]",
    r"\[TOOL_CALLS\]",
    "",
    'tool calls must be a list in valid JSON of {"name": …, "arguments": {…}}',
    'as a list in valid JSON of {"name": …, "arguments": {…}}',
    r'"id": *"([A-Za-z0-9]{9})"',
    NINE_LETTERS,
)
LLAMA3_JSON = Format(  # the whole turn is the call
    r'^\s*(?:<\|python_tag\|>)?\{"name":',
    r"^\s*\{|<\|python_tag\|>",
    "",
    'a tool call must be {"name": …, "parameters": {…}} in valid JSON, and nothing else in the turn',
    'as {"name": …, "parameters": {…}}, with nothing else in the turn',
)
