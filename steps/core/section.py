"""What a section of params.yaml is, and what add-ons bring to them (port `section` of steps/core/ports.py).

An add-on's addon.toml names the places in params.yaml, and for each a class, which is one of three:

    [section]
    serve = "addons.production.section:Serve"        # AddOnSection: has its defaults where params.yaml has none of it
    sft = "addons.supervised.section:Sft"            # OptionalSection: None there
    policy = "addons.fleet.section:Elsewhere"        # MoreFields: of a section of the core, to which others may add, too

The core's sections that take such up have the decorator `opened`. The module that holds the class imports nothing but this
one and pydantic: reading params.yaml imports it. An add-on reads its own section by `Serve.of(params)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, create_model, model_validator

from steps.core import ports
from steps.core.errors import UserError

if TYPE_CHECKING:
    from steps.core.params import Params

S = TypeVar("S", bound=BaseModel)


class Section(BaseModel):
    """A frozen mapping of params.yaml that refuses unknown keys, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def refuse_truth_for_numbers(cls, data: Any) -> Any:
        """pydantic reads true as 1. As a text it is refused where it stands."""
        words = dict[str, str]()
        for name, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(name)
            kinds = {*get_args(field.annotation), field.annotation} if field else set()
            if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
                words[name] = str(value).lower()
        return {**data, **words} if words else data


class Brought(Section):
    """What an add-on brings to params.yaml."""

    def check_with(self, params: Params) -> None:
        """ValueError where it does not go with the rest of params.yaml."""


class AddOnSection(Brought):
    """A section that has its defaults where params.yaml has none of it."""

    @classmethod
    def of(cls, params: BaseModel | None) -> Self:
        """The section in all of params.yaml, or in the part of it that a stage declares."""
        return written(cls, params) or cls()


class OptionalSection(Brought):
    """A section that is None where params.yaml has none of it."""

    @classmethod
    def of(cls, params: BaseModel | None) -> Self | None:
        """The section in all of params.yaml, or in the part of it that a stage declares."""
        return written(cls, params)


class MoreFields(Brought):
    """Fields that an add-on adds to a section of the core."""

    @classmethod
    def of(cls, section: BaseModel) -> Self:
        """A section of the core, which has these fields."""
        assert isinstance(section, cls)
        return section


def brought() -> Iterator[tuple[str, type[Brought]]]:
    """(place in params.yaml, class) of what the add-ons bring to it that are there, with what they need for it."""
    for addon in ports.addons():
        for key, place in addon.brings.get("section", {}).items():
            try:
                yield key, ports.load(place)
            except UserError:  # its settings are refused by lacking_section
                continue


def written(kind: type[S], params: BaseModel | None) -> S | None:
    """The section of this class in params, or params themselves where they are it."""
    if isinstance(params, kind):
        return params
    for key, section in brought():
        if params is not None and section is kind:
            value = at(params, key)
            return value if isinstance(value, kind) else None
    return None


def at(params: BaseModel, key: str) -> Any:
    """What is at a place in params.yaml; None where it is not there."""
    value: Any = params
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def check_brought(params: Params) -> None:
    """ValueError where something that the add-ons brought does not go with the rest of params.yaml."""
    for key, section in brought():
        if isinstance(value := at(params, key), section):
            section.check_with(value, params)


def for_one_task(params: Params, key: str) -> None:
    """ValueError where a setting is there that speaks of a single task, and there are several."""
    if params.tasks and at(params, key) is not None:
        raise ValueError(f"{key} speaks of a single task, and does not go with tasks: take one of the two out")


def opened(place: str = "", *names: str) -> Callable[[type[S]], type[S]]:
    """Decorates a section of the core with what add-ons bring to this place; with `names`, these alone. What they would
    bring that are not there may be written as what asks for nothing: null or 0, and {} for a key of the top level."""
    prefix = f"{place}." if place else ""
    nothing: list[Any] = [None, 0] if place else [None, 0, {}]

    def without_what_is_empty(cls: type[BaseModel], data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        lacking = {key for key in data if f"{prefix}{key}" in ports.SECTIONS and key not in cls.model_fields}
        return {key: value for key, value in data.items() if key not in lacking or value not in nothing}

    def with_sections(kind: type[S]) -> type[S]:
        more, fields = list[type[BaseModel]](), dict[str, Any]()
        for key, section in brought():
            parent, _, name = key.rpartition(".")
            if not (key == place or parent == place) or (names and name not in names):
                continue
            if issubclass(section, MoreFields):
                more += [section] * (key == place)
            elif issubclass(section, AddOnSection):
                fields[name] = (section, section())
            else:
                fields[name] = (section | None, None)
        rules: dict[str, Any] = {"without_what_is_empty": model_validator(mode="before")(without_what_is_empty)}
        bases: Any = (*more, kind)
        made = create_model(
            kind.__name__,
            __base__=bases,
            __module__=kind.__module__,
            __doc__=kind.__doc__,
            __validators__=rules,
            **fields,
        )
        return cast(type[S], made)

    return with_sections
