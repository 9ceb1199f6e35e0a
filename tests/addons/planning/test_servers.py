"""What is said of an MCP server's tools that do not fit the model's context: with the tokens that the policy would read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from addons.planning import plan, servers
from steps.core.errors import UserError
from steps.core.params import Params
from steps.policy.chat import Chat
from tests.conftest import ROOT

DESCRIPTION = "You keep notes."
GENERAL = str(ROOT / "tasks_data" / "general_policy")


def tool(name: str, words: int) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    function = {"name": name, "description": "keep a note " * words, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [tool("write", 40), tool("read", 5), tool("erase", 200), tool("list", 3)]


@pytest.fixture
def _notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project's folder with the task `notes`."""
    folder = tmp_path / "tasks_data" / "notes"
    folder.mkdir(parents=True)
    (folder / "server.yaml").write_text(yaml.safe_dump({"description": DESCRIPTION, "command": "notes"}))
    (folder / "tools.json").write_text(json.dumps(TOOLS))
    monkeypatch.chdir(tmp_path)


def params(**policy: Any) -> Params:
    return Params.model_validate({"task": "notes", "policy": policy})


def counted(tools: list[dict[str, Any]]) -> int:
    """Tokens of the shortest prompt, as the stages count them."""
    from transformers import AutoTokenizer

    messages = [{"role": "system", "content": DESCRIPTION}, {"role": "user", "content": "?"}]
    return len(Chat(AutoTokenizer.from_pretrained(GENERAL), tools).prompt_ids(messages))


@pytest.mark.usefixtures("_notes")
def test_tools_that_do_not_fit_are_named_with_their_tokens_before_a_run() -> None:
    whole, bare = counted(TOOLS), counted([])
    plan.check(params(base_model=GENERAL, context=whole + 1))
    with pytest.raises(UserError) as raised:
        plan.check(params(base_model=GENERAL, context=whole))
    text = str(raised.value)
    assert (
        f"has 4 tools with {whole - bare:,} tokens of {GENERAL}, and policy.context is {whole:,}: they do not fit"
        in text
    )
    erase = counted([TOOLS[2]]) - bare
    assert (
        f"with include in tasks_data/notes/server.yaml, or leave some out with exclude (the longest: erase {erase:,}, "
        in text
    )
    assert "or raise policy.context" in text


@pytest.mark.usefixtures("_notes")
def test_a_model_that_is_not_here_is_estimated_and_the_sentence_says_so() -> None:
    text, length = servers.sentence("notes", params(base_model="nobody/knows").policy)
    assert length.is_estimate
    assert (
        f"{sum(len(json.dumps(each)) for each in TOOLS) // servers.CHARACTERS:,} tokens of nobody/knows (about, by"
        in text
    )


@pytest.mark.usefixtures("_notes")
def test_making_a_task_says_how_many_tokens_its_tools_have(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["servers", "notes"])
    preset = Path("tasks_data/notes.yaml")
    preset.write_text(yaml.safe_dump({"task": "notes", "policy": {"base_model": GENERAL}}))
    assert servers.main() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("the MCP server of notes has 4 tools with ")
    assert "fit" not in printed
    preset.write_text(yaml.safe_dump({"task": "notes", "policy": {"base_model": GENERAL, "context": 64}}))
    assert servers.main() == 0
    assert capsys.readouterr().out.startswith("ATTENTION: the MCP server of notes has 4 tools with ")
    preset.unlink()
    assert servers.main() == 2


@pytest.mark.usefixtures("_notes")
def test_a_template_without_tools_is_refused_for_a_server_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(UserError, match="cannot play notes, because its chat template leaves out the task's tools"):
        plan.check(params(base_model=str(tmp_path)))
