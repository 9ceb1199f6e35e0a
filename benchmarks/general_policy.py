"""Does a policy call tools that it never saw? A hundred requests to twenty sets of tools, one greedy turn each.

    python -m benchmarks.general_policy                         # the general policy, and before it the embedded one
    python -m benchmarks.general_policy --policy FOLDER NAME    # other policies
    python -m benchmarks.general_policy --quick                 # five sets of tools

The sets are in benchmarks/general_policy.jsonl, five requests each. They were written by hand, as users of twenty trades
might, before the generator of the general policy's demonstrations was. None of their tools' names (`answer` excepted) and
none of their requests comes from that generator; a test holds it to that. A row is a policy: `valid` is the share of turns
with a call that a task would accept (JSON, a tool that there is, arguments of the schema's types), `tool` of those whose
first call is of the right tool, and `ratio` of those that have the right arguments, too. Letters' case does not count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from benchmarks import _common
from benchmarks._common import ROOT

FILE = ROOT / "benchmarks" / "general_policy.jsonl"
POLICIES = ("tasks_data/embedded_policy", "tasks_data/general_policy")
QUICK = 5  # sets of tools
MAX_TOKENS = 96


class Verdict(NamedTuple):
    """What is right about a turn."""

    valid: bool
    tool: bool
    arguments: bool


def verdict(calls: list[dict[str, Any]], problems: list[str], request: dict[str, Any], tools: list[Any]) -> Verdict:
    """Of a turn's calls, as `Chat.parse` reads them."""
    from environments.kit.tools import tool_of

    if not calls or problems:
        return Verdict(False, False, False)
    first, functions = calls[0]["function"], {tool["function"]["name"]: tool["function"] for tool in tools}
    try:
        tool_of(json.loads(json.dumps(functions[first["name"]]))).arguments.model_validate(first["arguments"])
    except (KeyError, ValidationError):
        return Verdict(False, False, False)
    is_right = first["name"] == request["tool"]
    return Verdict(True, is_right, is_right and plain(first["arguments"]) == plain(request["arguments"]))


def plain(value: Any) -> Any:
    """A value without what does not count: the case of letters, and spaces around a text."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return value.strip().casefold() if isinstance(value, str) else value


def measure(policy: str, sets: int | None = None, shown: bool = False) -> dict[str, Any]:
    """The row of a policy."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from steps.policy.chat import Chat

    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    verdicts: list[Verdict] = []
    for line in FILE.read_text(encoding="utf-8").splitlines()[:sets]:
        made = json.loads(line)
        chat = Chat(tokenizer, made["tools"])
        system = [{"role": "system", "content": made["system"]}] if "system" in made else []
        for request in made["requests"]:
            ids = torch.tensor([chat.prompt_ids([*system, {"role": "user", "content": request["user"]}])])
            with torch.no_grad():
                written = model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=MAX_TOKENS,
                    eos_token_id=chat.end,
                )
            message, problems = chat.parse(written[0, ids.shape[1] :].tolist())
            verdicts.append(verdict(message.get("tool_calls") or [], problems, request, made["tools"]))
            if shown:
                _common.tell(f"{request['user']}\n    {message.get('tool_calls') or message['content']} {verdicts[-1]}")
    valid, tool, right = (sum(column) / len(verdicts) for column in zip(*verdicts, strict=True))
    return {
        "name": Path(policy).name,
        "ratio": round(right, 3),
        "valid": round(valid, 3),
        "tool": round(tool, 3),
        "requests": len(verdicts),
        "parameters": model.num_parameters(),
    }


def main() -> None:
    parser = _common.parser("general_policy", __doc__, f"{QUICK} sets of tools")
    parser.add_argument(
        "--policy", nargs="+", default=POLICIES, help=f"folders or names; default: {' '.join(POLICIES)}"
    )
    parser.add_argument("--show", action="store_true", help="each request with what was called, on standard error")
    options = parser.parse_args()
    rows = _common.begin("general_policy", options, len(options.policy) / len(POLICIES))
    for policy in options.policy:
        path = str(ROOT / policy) if (ROOT / policy).is_dir() else policy
        rows.add(measure(path, QUICK if options.quick else None, options.show))


if __name__ == "__main__":
    _common.command(main)
