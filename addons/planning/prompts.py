"""Whether a task's first prompt goes with a model, before anything heavy is loaded: by its chat template and its tokenizer.

Read are the template, tokenizer.json and the task's own scenarios, in a fraction of a second and without transformers, which
takes seconds to import. Left out are models whose files are not on this machine yet, agents of the user's own, and tasks of
other packages or outside environments/: their stage says the same, later. Tools of MCP servers: addons/planning/servers.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environments
from addons.planning import models
from steps.core.errors import UserError
from steps.core.ports import bring, names
from steps.policy.loading import chat_template

if TYPE_CHECKING:
    from environments.base import Env
    from steps.core.params import Params, Policy


def check(params: Params) -> None:
    """UserError where the model's chat template leaves out the task's tools, or policy.context holds no first prompt; for a
    task that cannot be loaded, too."""
    for name in params.task.split("+"):
        if ":" in name or "." in name or name not in environments.tasks(agents=False):
            continue
        policy, text = params.policy, template_of(params.policy)
        if text is None:
            continue
        try:
            env = environments.load(name)
            has_tools = bool(env.tools())
        except (ValueError, ModuleNotFoundError) as problem:
            raise UserError(f"task: {problem}") from None
        if has_tools and "tools" not in text:
            raise UserError(without_tools(policy, name))
        length = first_prompt(policy, text, env, Path("tasks_data") / name, params.seed)
        for section, given in (("rollout", params.rollout.max_tokens), ("evaluate", params.evaluate.max_tokens)):
            if length is not None and given is not None and length < policy.context < length + given:
                raise UserError(
                    f"{section}.max_tokens: {given} leaves no room for a turn: policy.context is {policy.context}, and a "
                    f"first prompt of {name} has {length} tokens of {policy.base_model}; lower it, or raise policy.context"
                )
        if length is not None and length >= policy.context:
            raise UserError(
                f"policy.context is {policy.context}, and a first prompt of {name} has {length} tokens of "
                f"{policy.base_model}: raise it so that every turn and every answer of a tool fit behind the prompt, or "
                "shorten the system message and the descriptions of the tools"
            )


def without_tools(policy: Policy, name: str) -> str:
    """What is said of a chat template that leaves out a task's tools."""
    return (
        f"policy.base_model: {policy.base_model} cannot play {name}, because its chat template leaves out the task's tools: "
        "set policy.chat_template to one that has them, a file or one of "
        f"{', '.join(names('template'))} (docs/gpu.md)"
    )


def folder_of(policy: Policy) -> Path | None:
    """The folder on this machine that holds the model's files; None where there is none yet."""
    if policy.is_gguf:
        folder = bring("weights", "gguf", "policy.base_model").folder_of(policy)
        return folder if folder.is_dir() else None
    config = models.config_of(policy)
    return config.parent if config else None


def template_of(policy: Policy) -> str | None:
    """The text of the chat template that the run uses; None where it is not at hand."""
    if policy.chat_template:
        return chat_template(policy.chat_template)
    if (folder := folder_of(policy)) is None:
        return None
    if (file := folder / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    given = settings_of(folder).get("chat_template")
    return given if isinstance(given, str) else None  # several by name are left to transformers, which chooses


def settings_of(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json; empty where there is none."""
    path = folder / "tokenizer_config.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def first_prompt(policy: Policy, text: str, env: type[Env], data: Path, seed: int) -> int | None:
    """Tokens of the prompt of a training scenario; None where its files or a tokenizer.json are not at hand, or the template
    uses more than jinja's own tags."""
    from jinja2 import TemplateError

    count = counter(policy, text)
    if count is None:
        return None
    try:
        [scenario] = env.scenarios(env.load(data), "train", 1, seed)
        return count(scenario.messages, [tool.schema for tool in env.tools().values()] or None)
    except (ValueError, TypeError, OSError, TemplateError):  # the stage that needs it says what is wrong
        return None


# (messages, tools in the OpenAI form or None) -> tokens of the prompt
Counter = Callable[[Sequence[Mapping[str, Any]], list[dict[str, Any]] | None], int]


def counter(policy: Policy, text: str | None = None) -> Counter | None:
    """Counts the tokens of prompts, by the chat template `text` (None: the run's) and the model's tokenizer.json; None where
    one of these is not at hand, or the run's template uses more than jinja's own tags."""
    from jinja2 import TemplateError
    from tokenizers import Tokenizer

    folder = folder_of(policy)
    template = template_of(policy) if text is None else text
    if folder is None or template is None or not (folder / "tokenizer.json").is_file():
        return None
    marks = {name: mark for name, mark in settings_of(folder).items() if name.endswith("_token")}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def count(messages: Sequence[Mapping[str, Any]], tools: list[dict[str, Any]] | None) -> int:
        values = marks | policy.chat_template_kwargs | {"messages": messages, "tools": tools}
        return len(tokenizer.encode(rendered(template, values), add_special_tokens=False).ids)

    if text is None:
        try:
            count([{"role": "user", "content": "?"}], None)
        except (ValueError, TypeError, TemplateError):
            return None
    return count


def rendered(text: str, values: Mapping[str, Any]) -> str:
    """A chat template's prompt up to where the assistant begins, as transformers renders it."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    sandbox: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    sandbox.filters["tojson"] = lambda value, **more: json.dumps(value, **dict[str, Any](ensure_ascii=False) | more)
    sandbox.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return sandbox.from_string(text).render(**values, add_generation_prompt=True)
