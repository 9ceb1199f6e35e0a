"""Tools made from methods: which are refused and with which words, how docstrings are read, and what results look like."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from addons.families.reader import OTHER
from environments._template import Template
from environments.base import Component, Env, error, is_call_error, is_unparsed
from environments.kit.tools import any_call, make_tool, text_of, tool
from steps.core.ports import names
from steps.core.records import Trajectory
from steps.judging.rule import by_rule
from steps.policy.formats import UNWRITABLE, form_of
from tests.conftest import ROOT

FOLDER = ROOT / "tasks_data" / "_template"


def arguments(method: Callable[..., Any]) -> dict[str, Any]:
    properties: dict[str, Any] = make_tool(method).schema["function"]["parameters"]["properties"]
    return properties


# --- Docstrings


def test_google_style_with_types_long_lines_and_other_sections() -> None:
    def look(self: Env, country: str, limit: int = 3, kinds: list[str] | None = None) -> str:
        """Look up a country,
        or several.

        Args:
            country (str): its name: in English,
                without an article
            limit (int, optional): how many
            kinds (list[str] | None):
                which kinds

        Returns:
            text: what is said of it

        Raises:
            limit: never
        """
        return country

    schema = make_tool(look).schema["function"]
    assert schema["description"] == "Look up a country, or several."
    assert schema["parameters"] == {
        "type": "object",
        "properties": {
            "country": {"type": "string", "description": "its name: in English, without an article"},
            "limit": {"type": "integer", "description": "how many"},
            "kinds": {"type": "array", "items": {"type": "string"}, "description": "which kinds"},
        },
        "required": ["country"],
    }


def test_a_section_ends_the_description_even_before_the_arguments() -> None:
    def look(self: Env, country: str) -> str:
        """Look.

        Returns:
            country: a text
        Arguments:
            country: its name
        """
        return country

    schema = make_tool(look).schema["function"]
    assert schema["description"] == "Look."
    assert schema["parameters"]["properties"]["country"]["description"] == "its name"


def test_arguments_may_be_called_as_a_models_own_methods_are(recwarn: pytest.WarningsRecorder) -> None:
    def renew(self: Env, copy: str, schema: int, model_name: str) -> str:
        """Renew.

        Args:
            copy: which
            schema: how
            model_name: whose
        """
        return copy

    checked = make_tool(renew).arguments.model_validate({"copy": "B-1", "schema": 2, "model_name": "x"})
    assert [getattr(checked, name) for name in type(checked).model_fields] == ["B-1", 2, "x"]
    assert not recwarn.list


def test_choices_are_of_the_type_of_their_values() -> None:
    def look(self: Env, level: Literal[1, 2], kind: Literal["a", "b"]) -> str:
        """Look.

        Args:
            level: how far
            kind: of what
        """
        return kind * level

    assert arguments(look)["level"] == {"type": "integer", "enum": [1, 2], "description": "how far"}
    assert arguments(look)["kind"] == {"type": "string", "enum": ["a", "b"], "description": "of what"}


# --- What cannot be a tool


def no_hint(self, country):  # pyrefly: ignore[implicit-any-parameter, unannotated-return]
    """Look.

    Args:
        country: its name
    """


def no_line(self: Env, country: str) -> None:
    """Look. country: its name"""


def empty_line(self: Env, country: str) -> None:
    """Look.

    Args:
        country:
    """


def no_docstring(self: Env, country: str) -> None:
    pass


def a_mapping(self: Env, country: dict[str, int]) -> None:
    """Look.

    Args:
        country: its name
    """


def a_bare_list(self: Env, country: list) -> None:
    """Look.

    Args:
        country: its name
    """


def mixed_choices(self: Env, country: Literal[1, "a"]) -> None:
    """Look.

    Args:
        country: its name
    """


def unknown_hint(self: Env, country: Country) -> None:  # pyrefly: ignore[unknown-name]  # noqa: F821
    """Look.

    Args:
        country: its name
    """


def starred(self: Env, *country: str) -> None:
    """Look.

    Args:
        country: its name
    """


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (no_hint, r"^no_hint: the argument country has no type hint: write it as in `country: str`$"),
        (
            no_line,
            r"^no_line: the docstring does not describe country: add a line `country: what it is` to its section",
        ),
        (empty_line, r"^empty_line: the docstring does not describe country"),
        (no_docstring, r"^no_docstring: the docstring does not describe country"),
        (a_mapping, r"^a_mapping: the argument country cannot be of type dict.*: the types are str, int"),
        (a_bare_list, r"^a_bare_list: the argument country cannot be of type list: .*list\[str\]"),
        (mixed_choices, r"^mixed_choices: the argument country cannot be of type .*Literal"),
        (unknown_hint, r"^unknown_hint: a type hint cannot be read \(name 'Country' is not defined\)"),
        (starred, r"^starred: the argument country is not a named argument"),
    ],
)
def test_what_cannot_be_described_is_named(method: Callable[..., Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        make_tool(method)


def test_an_async_tool_answers_like_any_other_and_makes_its_task_slow() -> None:
    class Asking(Template):
        @tool
        async def look(self, place: str) -> dict[str, str]:
            """Look at a place.

            Args:
                place: its name
            """
            await asyncio.sleep(0)
            return {"place": place}

    data = Template.load(FOLDER)
    env = Asking(Template.scenarios(data, "train", 1, 1)[0], data)
    assert env.call("look", {"place": "Lima"}) == '{"place": "Lima"}'
    assert env.call("look", {}) == "Error: wrong arguments for look: place: field required."
    assert Asking.tools()["look"].schema["function"]["parameters"]["required"] == ["place"]
    assert (Template.lag(), Asking.lag()) == (0, 8)


def test_generators_and_what_is_no_method_are_refused_where_they_are_defined() -> None:
    with pytest.raises(TypeError, match=r"rows: a tool cannot use `yield`; return the whole result"):

        @tool
        def rows(self: Env) -> Iterator[str]:
            yield "a row"

    with pytest.raises(TypeError, match="a tool is a plain method, not a staticmethod"):
        tool(staticmethod(no_docstring))

    class Below(Template):
        peek = staticmethod(tool(no_docstring))

    with pytest.raises(TypeError, match="a tool is a plain method, not a staticmethod"):
        Below.tools()


# --- Results


@dataclass
class Row:
    name: str
    count: int


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is: {'a': 1}", "as it is: {'a': 1}"),
        ({"town": "Zürich", "open": True, "boss": None}, '{"town": "Zürich", "open": true, "boss": null}'),
        ([Row("a", 1)], '[{"name": "a", "count": 1}]'),
        ((1, 2.5), "[1, 2.5]"),
        (3, "3"),
        ({"at": Path("x")}, '{"at": "x"}'),
    ],
)
def test_results_that_are_no_text_are_json(result: Any, text: str) -> None:
    class Answering(Template):
        @tool
        def look(self) -> Any:
            """Look."""
            return result

    env = Answering(Template.scenarios(Template.load(FOLDER), "train", 1, 1)[0], None)
    assert env.call("look", {}) == text


def test_a_coroutine_is_no_observation() -> None:
    with pytest.raises(TypeError, match="the tool look returned a coroutine, not a result"):
        text_of("look", asyncio.sleep(0))


# --- A reward in one number


def scored(reward: Any) -> Any:
    """What the judge makes of a template's episode with this reward."""
    env = type("Rewarding", (Template,), {"reward": classmethod(lambda cls, scenario, messages: reward)})
    scenario = Template.scenarios(Template.load(FOLDER), "train", 1, 1)[0]
    trajectory = Trajectory(
        id="t", scenario_id=scenario.id, attempt=0, adapter_hash="", turns=(), stop_reason="max_turns"
    )
    return by_rule(env, scenario, trajectory)


def test_a_reward_may_be_a_number() -> None:
    reward = scored(0.5)
    assert (reward.score, reward.components) == (0.5, {"reward": 0.5})
    assert reward.explanation == "reward: Rewarding.reward gives one number"
    assert scored(True).score == 1.0
    assert scored([Component("right", 1.0, "it is")]).components == {"right": 1.0}


@pytest.mark.parametrize("reward", [None, {"right": 1.0}, [1.0, 0.5], "1.0"])
def test_any_other_reward_is_unscored_with_what_is_wanted(reward: Any) -> None:
    wanted = "Rewarding.reward must return a number or a list of Component(name"
    given = scored(reward)
    assert given.score is None
    assert given.explanation.startswith(f"unusable: {wanted if reward != '1.0' else 'reward is '}")


def test_a_class_that_extends_a_task_has_its_tools_too() -> None:
    class More(Template):
        @tool
        def shout(self, text: str) -> str:
            """Say it aloud.

            Args:
                text: What to say.
            """
            return text.upper()

    class Less(Template):
        pass

    assert Template.tools()
    assert list(Less.tools()) == list(Template.tools())
    assert list(More.tools()) == [*Template.tools(), "shout"]


def test_errors_of_a_call_are_told_from_those_of_a_tool() -> None:
    """The first are the policy's: no tool has seen such a turn."""
    data = Template.load(FOLDER)
    env = Template(Template.scenarios(data, "train", 1, 1)[0], data)
    [name, *_] = env.tools()
    wrong = [("none", {}), (name, []), (name, {"key": float("nan")}), (name, {"unknown": 1})]
    shown = [env.call(tool, given) for tool, given in wrong] + [str(env.hear("words")[0]["content"])]
    forms = [form_of(name) for name in ("hermes", *names("family"))]
    unparsed = [error(text) for text in (*(form.malformed for form in forms if form), OTHER, UNWRITABLE)]
    assert [text for text in [*shown, *unparsed] if not is_call_error(text)] == []
    assert [text for text in unparsed if not is_unparsed(text)] == []
    assert [text for text in shown if is_unparsed(text)] == []
    assert not is_call_error(error("there is no country of this name; look up another"))


def test_bounds_and_unions_reach_the_policy_and_the_check() -> None:
    def book(
        self: Env,
        seats: Annotated[int, Field(ge=1, le=9)],
        row: int | str,
        price: Annotated[float | None, Field(gt=0)] = None,
        names: list[Annotated[str, Field(min_length=2)]] | None = None,
        hall: int = Field(1, ge=1, description="which hall"),
        share: float = Field(0.5, gt=0, lt=0.2, description="of the price"),
    ) -> None:
        """Book.

        Args:
            seats: how many
            row: its name
            price: at most
            names: of guests
        """

    made = make_tool(book)
    parameters = made.schema["function"]["parameters"]
    assert parameters["required"] == ["seats", "row"]
    assert parameters["properties"] == {
        "seats": {"type": "integer", "minimum": 1, "maximum": 9, "description": "how many"},
        "row": {"anyOf": [{"type": "integer"}, {"type": "string"}], "description": "its name"},
        "price": {"type": "number", "exclusiveMinimum": 0, "description": "at most"},
        "names": {"type": "array", "items": {"type": "string", "minLength": 2}, "description": "of guests"},
        "hall": {"type": "integer", "minimum": 1, "default": 1, "description": "which hall"},
        "share": {
            "type": "number",
            "exclusiveMinimum": 0,
            "exclusiveMaximum": 0.2,
            "default": 0.5,
            "description": "of the price",
        },
    }
    assert made.arguments.model_validate({"seats": 9, "row": "b"}).model_dump()["hall"] == 1
    for wrong in ({"seats": 10}, {"row": 1.5}, {"price": 0.0}, {"names": ["a"]}, {"hall": 0}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            made.arguments.model_validate({"seats": 1, "row": 1} | wrong)
    for seed in range(50):
        call = any_call({"book": made}, Random(seed))["tool_calls"][0]["function"]
        made.arguments.model_validate(call["arguments"])
