"""The pages of `flows.view`: what each address answers. Templates lie in flows/pages_html/ and escape all they are given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from steps.stage import UserError

if TYPE_CHECKING:
    from markupsafe import Markup
    from starlette.requests import Request
    from starlette.responses import Response

    from flows.view_index import Group, Index
    from flows.view_query import Query
    from steps.analytics import Analysis

PAGES = Path(__file__).parent / "pages_html"
LINES = {"group": 50, "attempt": 100}  # of a list, on one page
STATE = (
    *("q", "said", "iteration", "kind", "outcome", "stop", "min", "max", "error", "by", "sort", "order", "page"),
    *("at", "scenario", "attempt", "tokens", "before", "after", "change"),
)
HEADS = (
    ("iteration", "Iteration"),
    ("question", "Scenario"),
    ("reward", "Reward"),
    ("spread", "Spread"),
    ("success", "Success"),
    ("turns", "Turns"),
    ("tokens", "Tokens"),
    ("stop", "Stopped by"),
)


class View:
    """The pages of one run."""

    def __init__(self, index: Index) -> None:
        from jinja2 import Environment, FileSystemLoader

        from flows import view_query, view_tokens

        self.index = index
        self.counted: tuple[object, Analysis] | None = None  # versions of the files, and what they come to
        self.counting = threading.Lock()
        self.templates = Environment(
            loader=FileSystemLoader(PAGES), autoescape=True, trim_blocks=True, lstrip_blocks=True, auto_reload=False
        )
        self.templates.filters |= FILTERS
        self.templates.globals |= {
            "run": str(index.run),
            "link": link,
            "likely": view_tokens.LIKELY,
            "outcomes": view_query.OUTCOMES,
            "none": None,
        }

    def html(self, template: str, request: Request, code: int = 200, **values: Any) -> Response:
        from starlette.responses import HTMLResponse

        known = {"state": state(request), "here": request.url.path, "problems": self.index.problems} | values
        return HTMLResponse(self.templates.get_template(template).render(known), code)

    def list(self, request: Request) -> Response:
        """Groups, or attempts, that the filters keep."""
        from flows.view_query import parse

        query = parse(request.query_params)
        self.index.refresh()
        rows = self.index.search(query)
        groups = self.index.groups()
        size = LINES[query.by]
        last = max(1, -(-len(rows) // size))
        page = min(query.page, last)
        values: dict[str, Any] = {
            "query": query._replace(page=page),
            "shown": rows[(page - 1) * size : page * size],
            "rows_total": len(rows),
            "last": last,
            "found": sum(len(row.found) for row in rows),
            "total": sum(len(group.attempts) for group in groups),
            "groups_total": len(groups),
            "heads": [head for head in HEADS if query.by == "group" or head[0] != "spread"],
        }
        if request.query_params.get("part") == "rows":
            return self.html("rows.html", request, **values)
        values["iterations"] = list(dict.fromkeys(batch.iteration for batch in self.index.batches.values()))
        values["kinds"] = list(dict.fromkeys(batch.kind for batch in self.index.batches.values()))
        values["stops"] = sorted({one.stop for group in groups for one in group.attempts})
        return self.html("list.html", request, **values)

    def group(self, request: Request) -> Response:
        """The attempts at one scenario, side by side; the filters say which group is next."""
        from flows import view_group
        from flows.view_index import line
        from flows.view_query import parse

        given = request.query_params
        query = parse(given)
        self.index.refresh()
        group = self.index.find(given.get("at", ""), given.get("scenario", ""))
        place, of, before, after = self.neighbours(query, group, state(request))
        chosen = given.get("attempt", "")
        elsewhere = [other.batch for other in self.index.groups() if other.scenario == group.scenario]
        return self.html(
            "group.html",
            request,
            group=group,
            row=line(group, group.attempts, ()),
            asked=view_group.asked(self.index.run, group.scenario),
            fulls=view_group.full(self.index, group),
            opinion=view_group.opinion(self.index.batches[group.batch], group.scenario),
            elsewhere=[key for key in elsewhere if key != group.batch],
            chosen=int(chosen) if chosen.isdecimal() else None,
            shown=shown_tokens(given),
            place=place,
            of=of,
            before=before,
            after=after,
        )

    def neighbours(self, query: Query, group: Group, known: dict[str, str]) -> tuple[int, int, str, str]:
        """Where a group stands among those that the filters keep (from 1; 0: nowhere), of how many, and who is beside it."""
        keys = list(dict.fromkeys((row.group.batch, row.group.scenario) for row in self.index.search(query)))
        if (group.batch, group.scenario) not in keys:
            return 0, len(keys), "", ""
        place = keys.index((group.batch, group.scenario))

        def to(other: int) -> str:
            if not 0 <= other < len(keys):
                return ""
            return link("/group", known, at=keys[other][0], scenario=keys[other][1], attempt="")

        return place + 1, len(keys), to(place - 1), to(place + 1)

    def compare(self, request: Request) -> Response:
        """Scenarios before and after training, or one of them side by side."""
        from flows import view_compare, view_group
        from flows.view_query import holds, parse

        given = request.query_params
        query, known = parse(given), state(request)
        self.index.refresh()
        before, after = view_compare.chosen(self.index.batches, given.get("before", ""), given.get("after", ""))
        known |= {"before": before.key, "after": after.key}
        change, scenario = given.get("change", ""), given.get("scenario", "")
        if change not in ("", *view_compare.CHANGES):
            raise UserError(f"change={change[:40]} is not known: one of {', '.join(view_compare.CHANGES)}")
        every = view_compare.pairs(before, after)
        found = [
            pair
            for pair in every
            if change in ("", pair.change)
            and holds(query.text.split(), pair.before.group.question, pair.before.group.scenario)
        ]
        last = max(1, -(-len(found) // LINES["attempt"]))
        page = min(query.page, last)
        values: dict[str, Any] = {
            "state": known,
            "keys": list(self.index.batches),
            "before": before.key,
            "after": after.key,
            "changes": view_compare.CHANGES,
            "change": change,
            "counts": view_compare.counts(every),
            "pairs": found,
            "pairs_total": len(every),
            "shown": found[(page - 1) * LINES["attempt"] : page * LINES["attempt"]],
            "page": page,
            "last": last,
            "scenario": scenario,
        }
        if scenario:
            sides = [
                (batch.key, view_group.full(self.index, group))
                for batch in (before, after)
                for group in batch.groups
                if group.scenario == scenario
            ]
            if not sides:
                raise UserError(f"neither {before.key} nor {after.key} holds an attempt at a scenario {scenario[:80]}")
            names = [pair.before.group.scenario for pair in found]
            place = names.index(scenario) if scenario in names else len(names)
            values |= {
                "sides": sides,
                "asked": view_group.asked(self.index.run, scenario),
                "shown_tokens": shown_tokens(given),
                "previous": link("/compare", known, scenario=names[place - 1]) if 0 < place < len(names) else "",
                "next": link("/compare", known, scenario=names[place + 1]) if place + 1 < len(names) else "",
            }
        part = given.get("part") == "rows"
        return self.html("compare_rows.html" if part else "compare.html", request, **values)

    def analytics(self, request: Request) -> Response:
        """Numbers by iteration and split; counted anew where a file has changed."""
        from flows import view_charts
        from steps import analytics
        from steps.types import OUTPUTS
        from steps.waste import FATES

        self.index.refresh()
        version = [batch.version for batch in self.index.batches.values()]
        with self.counting:  # a second click waits for the first count
            if self.counted is None or self.counted[0] != version:
                self.counted = version, analytics.analyse(self.index.run, "iteration,split")
        found = self.counted[1]
        pictures = [view_charts.actions(found, split) for split in view_charts.SPLITS] + [view_charts.fates(found)]
        return self.html(
            "analytics.html",
            request,
            found=found,
            charts=[*view_charts.curves(found), *filter(None, pictures)],
            patterns=[(pattern, view_charts.search(pattern)) for pattern in found.patterns],
            splits=view_charts.SPLITS,
            kinds={"train": "rollout", "val": "evaluation", "test": "test"},
            fates=FATES,
            stages=list(OUTPUTS),
            width=view_charts.WIDTH,
            height=view_charts.HEIGHT,
            left=view_charts.LEFT,
            right=view_charts.RIGHT,
        )


def shown_tokens(given: Mapping[str, str]) -> str:
    """Which tokens a page shows: "" the sampled, "all" those in between too, "none"."""
    if (tokens := given.get("tokens", "")) not in ("", "all", "none"):
        raise UserError(f"tokens={tokens[:40]} is not known: one of all, none")
    return tokens


def state(request: Request) -> dict[str, str]:
    """What of the query string links carry on."""
    return {name: request.query_params[name] for name in STATE if request.query_params.get(name)}


def link(path: str, known: Mapping[str, str], **changes: object) -> str:
    """An address with the query string of this page and some changes; what is empty is left out."""
    values = {name: str(value) for name, value in (known | changes).items() if value not in ("", None)}  # type: ignore[operator]
    return f"{path}?{urlencode(values)}" if values else path


def breaks(text: str) -> Markup:
    """A token's line breaks, made visible; the rest escaped."""
    from markupsafe import Markup, escape

    return Markup(str(escape(text)).replace("\n", '<i class="dim">↵</i>\n'))


FILTERS: dict[str, Callable[[Any], Any]] = {
    "number": lambda value: f"{value:,}",
    "fixed": lambda value: "–" if value is None else f"{value:.2f}",
    "signed": lambda value: f"{value:+.3f}",
    "share": lambda value: "–" if value is None else f"{value:.0%}",
    "short": lambda value: f"{value:,.1f}".removesuffix(".0"),
    "nats": lambda value: f"{value:.3f} nats",
    "breaks": breaks,
}
