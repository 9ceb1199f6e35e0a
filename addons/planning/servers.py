"""Whether the tools of an MCP server fit a model's context: counted when the task is made, and again before a run.

    python -m addons.planning.servers notes       # of tasks_data/notes; `make new-mcp` runs it

Counted are tools.json and server.yaml as they were recorded, with the chat template and the tokenizer of the policy that the
task's preset names. Where these are not on this machine yet, the characters are counted, the sentence says so, and no run is
refused for it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.planning import prompts
from environments.base import TaskProblem
from environments.mcp import read_tools
from environments.mcp.settings import read_settings
from steps.core import params as parameters
from steps.core.errors import UserError
from steps.core.params import Params
from steps.core.terminal import command_parser

if TYPE_CHECKING:
    from steps.core.params import Policy

# Of a token, where no tokenizer is at hand; eight real servers have 2.7 to 5.2 by tasks_data/general_policy.
CHARACTERS = 3
LONGEST = 3  # tools that are named


class Length(NamedTuple):
    """Tokens of a server's tools, and of the shortest prompt that has them."""

    tools: int
    prompt: int
    longest: dict[str, int]  # the longest tools by name
    is_estimate: bool


def length_of(policy: Policy, tools: list[dict[str, Any]], description: str) -> Length:
    """Of tools in the OpenAI form, and of the system message `description`."""
    count = prompts.counter(policy)
    messages = [{"role": "system", "content": description.strip()}, {"role": "user", "content": "?"}]
    sizes = {tool["function"]["name"]: len(json.dumps(tool, ensure_ascii=False)) for tool in tools}
    names = sorted(sizes, key=lambda name: -sizes[name])[:LONGEST]
    if count is None:
        whole = sum(sizes.values()) // CHARACTERS
        named = {name: sizes[name] // CHARACTERS for name in names}
        return Length(whole, whole + len(description) // CHARACTERS, named, True)
    bare, whole = count(messages, None), count(messages, tools)
    named = {
        tool["function"]["name"]: count(messages, [tool]) - bare for tool in tools if tool["function"]["name"] in names
    }
    return Length(whole - bare, whole, dict(sorted(named.items(), key=lambda item: -item[1])), False)


def sentence(name: str, policy: Policy) -> tuple[str, Length]:
    """What is to be said of the tools of a task's server, without a full stop, and their length. TaskProblem where the
    task's files are missing."""
    folder = Path("tasks_data") / name
    settings, tools = read_settings(folder), read_tools(folder)
    length = length_of(policy, tools, settings.description)
    how = "about, by their characters, because its tokenizer is not on this machine yet" if length.is_estimate else ""
    count = f"{len(tools)} tools" if len(tools) > 1 else "one tool"
    text = (
        f"the MCP server of {name} has {count} with {length.tools:,} tokens of {policy.base_model}"
        f"{f' ({how})' if how else ''}, and policy.context is {policy.context:,}"
    )
    if length.prompt < policy.context:
        return text, length
    longest = ", ".join(f"{tool} {tokens:,}" for tool, tokens in length.longest.items())
    again = f"`.venv/bin/python -m environments.mcp.server {folder}`"
    return (
        f"{text}: they do not fit. Name those that the agent needs with include in {folder}/server.yaml, or leave some out "
        f"with exclude (the longest: {longest}), and record them again with {again}; or raise policy.context"
    ), length


def check(params: Params) -> None:
    """UserError where the tools of one of the run's MCP servers do not fit, or the chat template leaves them out."""
    for name in params.task.split("+"):
        if not (Path("tasks_data") / name / "server.yaml").is_file():
            continue
        template = prompts.template_of(params.policy)
        if template is not None and "tools" not in template:
            raise UserError(prompts.without_tools(params.policy, name))
        text, length = sentence(name, params.policy)
        if length.prompt >= params.policy.context and not length.is_estimate:
            raise UserError(text)


def main() -> int:
    parser = command_parser("addons.planning.servers", __doc__)
    parser.add_argument("task", metavar="NAME", help="the task's name, as in notes")
    name = parser.parse_args().task
    preset = Path("tasks_data") / f"{name}.yaml"
    try:
        policy = parameters.load(preset, Params).policy
        text, length = sentence(name, policy)
    except (TaskProblem, UserError) as problem:
        print(f"{problem}.", file=sys.stderr)
        return 2
    print(f"{text}." if length.prompt < policy.context else f"ATTENTION: {text}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
