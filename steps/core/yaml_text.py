"""Reads YAML that somebody else may have written, such as params.yaml, chain.yaml and dvc.lock, also of kept runs.

A plain loader ends in a traceback for a damaged file, ends the whole process where values are nested very deeply, and takes
gigabytes where a few lines of aliases repeat each other. Here the text is first read as a flat list of events, which is
cheap; only a text within the bounds below is loaded. Writing YAML, and `--set` (flows/repro/parameters.py), are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from steps.core.errors import UserError

LARGEST = 32 * 2**20  # characters; the dvc.lock of 999 iterations has about 14 million
DEEPEST = 100  # levels of lists and mappings within each other
REPEATED = 10_000  # values that all aliases of a text may repeat together


def read_mapping(text: str | bytes, where: object, cure: str = "") -> dict[str, Any]:
    """The keys and values of a YAML text, none where it is empty. UserError says what is wrong with it, and where.

    `cure` is what the user can do about a damaged text, such as "`git checkout dvc.lock` brings it back".
    """
    import yaml

    end = f"; {cure}" if cure else ""
    if len(text) > LARGEST:
        raise UserError(f"{where} is too large to be read ({len(text):,} characters; {LARGEST:,} are allowed){end}")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one takes a twentieth of the time
    try:
        if problem := excess(yaml.parse(text, loader)):
            raise UserError(f"{where} cannot be read: {problem}{end}")
        content = yaml.load(text, loader)
    except (yaml.YAMLError, ValueError, OverflowError) as problem:  # ValueError: a number or a date that is none
        raise UserError(f"{where} is not valid YAML: {' '.join(str(problem).split())}{end}") from None
    if content is not None and not isinstance(content, dict):
        raise UserError(f"{where} must hold keys and values, not a {type(content).__name__}{end}")
    return content or {}


class Opened:
    """A list or mapping that is being read."""

    def __init__(self, event: Any, before: int) -> None:
        import yaml

        self.anchor: str | None = event.anchor
        self.before = before  # the values before it
        self.keys: set[str] | None = set() if isinstance(event, yaml.MappingStartEvent) else None
        self.is_key = False  # whether the latest value in it was a key

    def repeated(self, event: Any) -> str | None:
        """The key that this next value in it is, where it has that already; merge keys may come again."""
        import yaml

        self.is_key = not self.is_key
        if self.keys is None or not self.is_key or not isinstance(event, yaml.ScalarEvent) or event.value == "<<":
            return None
        key = str(event.value)
        if key in self.keys:
            return key
        self.keys.add(key)
        return None


def excess(events: Iterable[Any]) -> str:
    """What a text has too much of: levels, a key, or values that its aliases repeat. Empty where it is within bounds."""
    import yaml

    opened: list[Opened] = []
    sizes: dict[str, int] = {}  # of what each anchor names, with what aliases repeat in it
    values = repeated = 0
    for event in events:
        if isinstance(event, yaml.NodeEvent) and opened and (key := opened[-1].repeated(event)) is not None:
            return f"it has {key[:80]!r} twice in one mapping: the first would count for nothing"
        if isinstance(event, yaml.AliasEvent):
            name = str(event.anchor)
            if name not in sizes and any(each.anchor == name for each in opened):
                return f"the alias *{name} refers to what it stands in"
            values, repeated = values + sizes.get(name, 1), repeated + sizes.get(name, 1)
            if repeated > REPEATED:
                return f"its aliases (such as *{name}) repeat more than {REPEATED:,} values; write them out"
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = opened.pop()
            if closed.anchor:
                sizes[closed.anchor] = values - closed.before
        elif isinstance(event, yaml.NodeEvent):
            values += 1
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append(Opened(event, values - 1))
                sizes.pop(str(event.anchor), None)
                if len(opened) > DEEPEST:
                    return f"it nests lists and mappings more than {DEEPEST} levels deep"
            elif event.anchor:
                sizes[event.anchor] = 1
    return ""
