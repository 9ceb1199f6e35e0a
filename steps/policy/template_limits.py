"""Whether a chat template that came with a model ends, within limits: it is a program, which Jinja's sandbox keeps from
other code, files and attributes, but not from loops without end or texts without measure.

It renders a short conversation in a process of its own, once for each text in a process. A template that only misbehaves
with other conversations is not found here.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

from steps.core.errors import UserError

SECONDS, BYTES, LETTERS = 10, 2**30, 2**20  # of computing, of memory, of what is written for a few words
CODE = """
import json, re, resource, sys
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
given = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (given["seconds"],) * 2)
resource.setrlimit(resource.RLIMIT_AS, (given["bytes"],) * 2)
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = lambda value, **_: json.dumps(value)
environment.globals |= {"raise_exception": lambda text: 1 / 0, "strftime_now": lambda form: ""}
text = re.sub(r"{%[-+]?\\s*(end)?generation\\s*[-+]?%}", "", given["template"])
for names in given["cases"]:
    length = 0
    try:
        for part in environment.from_string(text).generate(**names):
            length += len(part)
            if length > given["most"]:
                sys.exit(3)
    except MemoryError:
        sys.exit(4)
    except Exception:  # what the template itself refuses, which the chat says when it is made
        pass
"""
TOOL = {"type": "function", "function": {"name": "find", "description": "", "parameters": {"type": "object"}}}
NAMES: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "dummy"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "find", "arguments": {}}}],
        },
        {"role": "tool", "name": "find", "content": "dummy"},
    ],
    "tools": [TOOL],
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
}


@functools.cache
def check(template: str, name: str) -> None:
    """UserError for the chat template of the model `name` that does not end within the limits."""
    cases = [NAMES, NAMES | {"messages": NAMES["messages"][:1], "tools": None}]
    given = {"template": template, "cases": cases, "seconds": SECONDS, "bytes": BYTES, "most": LETTERS}
    command = [sys.executable, "-I", "-c", CODE]
    try:
        done = subprocess.run(command, input=json.dumps(given), text=True, capture_output=True, timeout=6 * SECONDS)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode:
        raise UserError(
            f"policy.base_model: the chat template of {name} does not end within {SECONDS} seconds, {BYTES // 2**30} GiB "
            "and a million letters for a conversation of three words; set policy.chat_template to another one"
        )
