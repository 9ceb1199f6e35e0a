"""The pages: what each address answers. The templates in viewer/templates/ escape all values."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jinja2 import Environment, FileSystemLoader
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from steps.core.errors import UserError
from steps.core.ports import every
from steps.project import chain
from viewer import charts
from viewer.formats import FILTERS, beside, link, paged, shown_tokens, state, words
from viewer.group import LIKELY, asked, full, opinion
from viewer.index import WORDS, AttemptGroup, Index, TrajectoryFile, holds, line
from viewer.overview import CHANGES, evaluations, overview, pairs
from viewer.query import OUTCOMES, SORTS, Query, parse
from viewer.runs import HERE, OpenedRun, Runs

if TYPE_CHECKING:
    from steps.analytics.analysis import Analysis

TEMPLATES = Path(__file__).parent / "templates"
LINES = {"group": 50, "attempt": 100}  # lines of a list per page
HEADS = {name: name.capitalize() for name in SORTS} | {"question": "Scenario", "stop": "Stopped by"}

Batches = dict[str, TrajectoryFile]  # by key


class Page(Protocol):
    """A page that an add-on brings, which is of no run. Its template extends base.html."""

    PATH: str  # its address
    TITLE: str  # in the list of pages
    TEMPLATE: Path

    def is_offered(self, root: Path) -> bool:
        """Whether the list of pages has it now."""

    def values(self, root: Path) -> tuple[dict[str, Any], int | None]:
        """(values of the template, seconds after which the page reloads itself)."""


class Pages:
    """The pages of all runs."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.brought: list[Page] = list(every("page"))
        self.counted: dict[Path, tuple[object, Analysis]] = {}  # by run: the versions of its files, and their analysis
        self.counting = threading.Lock()
        self.templates = Environment(
            loader=FileSystemLoader([TEMPLATES, *(page.TEMPLATE.parent for page in self.brought)]),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self.templates.filters |= FILTERS
        names: Any = self.templates.globals
        names |= {"runs": runs.all, "brought": self.offered, "link": link, "likely": LIKELY, "outcomes": OUTCOMES}
        names |= {name.lower(): getattr(charts, name) for name in ("WIDTH", "HEIGHT", "LEFT", "RIGHT")}

    def html(
        self, template: str, request: Request, opened: OpenedRun | None, code: int = 200, **values: Any
    ) -> Response:
        run = opened.choice if opened else self.runs.named(request.query_params.get("run", HERE))
        same = {} if run.name == HERE else {"run": run.name}  # the parameter that every link keeps
        common: dict[str, Any] = {
            "state": state(request),
            "here": request.url.path,
            "run": run.name,
            "folder": run.folder,
            "same": same,
        }
        if opened:
            common["problems"] = [*filter(None, [opened.problem]), *opened.index.problems]
        return HTMLResponse(self.templates.get_template(template).render(common | values), code)

    def page(self, answer: Callable[[Request, OpenedRun], Response]) -> Callable[[Request], Response]:
        """A page of the run that the address names, or a page that waits until the run has trajectories.

        An address that names none leads to one that does, unless it is the folder's own run.
        """

        def shown(request: Request) -> Response:
            name = request.query_params.get("run") or self.runs.default()
            if name != HERE and not request.query_params.get("run"):
                return RedirectResponse(link(request.url.path, dict(request.query_params), run=name))
            opened = self.runs.open(name)
            return answer(request, opened) if opened.index.batches else self.html("waiting.html", request, opened)

        return shown

    def list(self, request: Request, opened: OpenedRun) -> Response:
        """The groups or attempts that pass the filters; where there are none, below an overview of the run."""
        query, index = parse(request.query_params), opened.index
        rows = index.search(query)
        groups = index.groups()
        paging = paged(rows, query.page, LINES[query.by])
        values: dict[str, Any] = paging | {
            "query": query._replace(page=paging["page"]),
            "rows_total": len(rows),
            "kept": sum(len(row.kept) for row in rows),
            "total": sum(len(group.attempts) for group in groups),
            "groups_total": len(groups),
            "heads": [head for head in HEADS.items() if query.by == "group" or head[0] != "spread"],
        }
        if request.query_params.get("part") == "rows":
            return self.html("rows.html", request, opened, **values)
        values["iterations"] = list(dict.fromkeys(batch.iteration for batch in index.batches.values()))
        kinds = dict.fromkeys(batch.kind for batch in index.batches.values())
        values["kinds"] = [(kind, WORDS.get(kind, kind)) for kind in kinds]
        values["overview"] = None if set(state(request)) - {"run"} else overview(index.run, index.batches)
        values["stops"] = sorted({attempt.stop for group in groups for attempt in group.attempts})
        return self.html("list.html", request, opened, **values)

    def offered(self, here: str) -> Sequence[tuple[str, str]]:
        """(address, title) of the add-ons' pages that have something to show, and of the one that is `here`."""
        shown = [page for page in self.brought if page.is_offered(self.runs.root) or here == page.PATH]
        return [(page.PATH, page.TITLE) for page in shown]

    def of_addon(self, page: Page, request: Request) -> Response:
        """A page that an add-on brings."""
        values, seconds = page.values(self.runs.root)
        response = self.html(page.TEMPLATE.name, request, None, **values)
        if seconds is not None:
            response.headers["refresh"] = f"{seconds}"
        return response

    def group(self, request: Request, opened: OpenedRun) -> Response:
        """The attempts at a scenario side by side; the filters decide which groups are before and after."""
        parameters, index = request.query_params, opened.index
        query = parse(parameters)
        group = index.find(parameters.get("at", ""), parameters.get("scenario", ""))
        chosen = parameters.get("attempt", "")
        elsewhere = [other.batch for other in index.groups() if other.scenario == group.scenario]
        return self.html(
            "group.html",
            request,
            opened,
            group=group,
            row=line(group, group.attempts, ()),
            asked=asked(index.run, group.scenario),
            fulls=full(index, group),
            opinion=opinion(index.batches[group.batch], group.scenario),
            elsewhere=[key for key in elsewhere if key != group.batch],
            lag=lag(index.run, index.batches[group.batch]),
            chosen=next((attempt.number for attempt in group.attempts if str(attempt.number) == chosen), None),
            shown=shown_tokens(parameters),
            **neighbours(index, query, group, state(request)),
        )

    def compare(self, request: Request, opened: OpenedRun) -> Response:
        """Scenarios before and after training, or in two runs; or the attempts at a scenario side by side."""
        parameters = request.query_params
        query, carried, index = parse(parameters), state(request), opened.index
        name = parameters.get("other", "")
        other = self.runs.open(name) if name else opened
        later = other.index
        before, after = chosen(
            index.batches, later.batches if name else None, parameters.get("before", ""), parameters.get("after", "")
        )
        carried |= {"before": before.key, "after": after.key}
        whose = words(before.key), words(after.key)
        if name:
            whose = f"{title(opened)} {whose[0]}", f"{title(other)} {whose[1]}"
        change, scenario = parameters.get("change", ""), parameters.get("scenario", "")
        if change not in ("", *CHANGES):
            raise UserError(f"change={change[:40]} is not known: one of {', '.join(CHANGES)}")
        every = pairs(before, after)
        counts = Counter(pair.change for pair in every)
        shown_pairs = [
            pair
            for pair in every
            if change in ("", pair.change)
            and holds(query.text.split(), pair.before.group.question, pair.before.group.scenario)
        ]
        values: dict[str, Any] = paged(shown_pairs, query.page, LINES["attempt"]) | {
            "state": carried,
            "keys": [(key, words(key)) for key in index.batches],
            "later": [(key, words(key)) for key in later.batches],
            "other": name,
            "before": before.key,
            "after": after.key,
            "whose": whose,
            "changes": CHANGES,
            "change": change,
            "counts": {name: counts[name] for name in CHANGES if counts[name]},
            "pairs": shown_pairs,
            "pairs_total": len(every),
            "scenario": scenario,
        }
        if scenario:
            sides = [
                (side, full(source, group))
                for side, source, batch in zip(whose, (index, later), (before, after), strict=True)
                for group in batch.groups
                if group.scenario == scenario
            ]
            if not sides:
                raise UserError(f"neither {whose[0]} nor {whose[1]} holds an attempt at a scenario {scenario[:80]}")
            names = [pair.before.group.scenario for pair in shown_pairs]
            values["previous"], values["next"] = (
                link("/compare", carried, scenario=name) if name else "" for name in beside(names, scenario)
            )
            values |= {"sides": sides, "asked": asked(index.run, scenario), "shown_tokens": shown_tokens(parameters)}
        part = parameters.get("part") == "rows"
        return self.html("compare_rows.html" if part else "compare.html", request, opened, **values)

    def analytics(self, request: Request, opened: OpenedRun) -> Response:
        """Numbers by iteration and split, computed again when a file has changed."""
        from steps.analytics import analysis, skills
        from steps.core.records import ITERATION_STAGES
        from steps.training.fates import FATES

        run = opened.choice.folder
        version = [batch.version for batch in opened.index.batches.values()]
        with self.counting:  # a second click waits for the first computation
            if run not in self.counted or self.counted[run][0] != version:
                self.counted[run] = version, analysis.analyse(run, "iteration,split")
            result = self.counted[run][1]
        on_validation = evaluations(run)
        pictures = [
            charts.decisions(on_validation),
            *(charts.actions(result, split) for split in charts.SPLITS),
            charts.fates(result),
        ]
        return self.html(
            "analytics.html",
            request,
            opened,
            analysis=result,
            falls=skills.falls(on_validation) if on_validation else [],
            charts=[*charts.curves(result), *filter(None, pictures)],
            patterns=[(pattern, charts.search(pattern)) for pattern in result.patterns],
            splits=charts.SPLITS,
            kinds={"train": "rollout", "val": "evaluation", "test": "test"},
            fates=FATES,
            stages=list(ITERATION_STAGES),
        )


def lag(run: Path, batch: TrajectoryFile) -> int:
    """How many iterations older the adapter that sampled a training batch is than the one that was trained on it; 0 where
    chain.yaml does not say so."""
    if batch.kind != "rollout" or not chain.NAME.fullmatch(batch.iteration):
        return 0
    with suppress(UserError, OSError):
        return chain.policy_lag(run.absolute().parent, batch.iteration)
    return 0


def chosen(batches: Batches, others: Batches | None, before: str, after: str) -> tuple[TrajectoryFile, TrajectoryFile]:
    """The batches with these names; the second belongs to another run (`others`) or to the same (None).

    Without names: within a run its first evaluation (of the base policy) and the best other batch of that kind; between
    two runs the best batch of each. UserError for a name that does not exist.
    """
    later = batches if others is None else others
    for key, available in ((before, batches), (after, later)):
        if key and key not in available:
            raise UserError(f"there is no batch {key[:80]}: one of {', '.join(available) or 'none'}")
    if not later:
        raise UserError("the other run has no trajectories yet")
    evaluations = [batch for batch in batches.values() if batch.kind == "evaluation"] or list(batches.values())
    first = batches[before] if before else evaluations[0] if others is None else max(evaluations, key=rates)
    if after:
        return first, later[after]
    same = [batch for batch in later.values() if batch.kind == first.kind and batch is not first]
    return first, max(same or ([first] if others is None else later.values()), key=rates)


def rates(batch: TrajectoryFile) -> tuple[float, float, float]:
    """The criteria of flows.train: mean success, mean reward, then the earliest. Lowest of all if nothing is scored."""
    attempts = [attempt for group in batch.groups for attempt in group.attempts]
    rewards = [attempt.reward for attempt in attempts if attempt.reward is not None]
    if not rewards:
        return -1.0, 0.0, 0
    success = sum(bool(attempt.success) for attempt in attempts) / len(attempts)
    return success, sum(rewards) / len(rewards), -chain.place(batch.iteration)


def neighbours(index: Index, query: Query, group: AttemptGroup, carried: dict[str, str]) -> dict[str, Any]:
    """A group among those that pass the filters: place from 1, or 0; count; links to the ones before and after."""
    keys = list(dict.fromkeys((row.group.batch, row.group.scenario) for row in index.search(query)))
    own = (group.batch, group.scenario)
    before, after = (
        link("/group", carried, at=key[0], scenario=key[1], attempt="") if key else "" for key in beside(keys, own)
    )
    place = keys.index(own) + 1 if own in keys else 0
    return {"place": place, "count": len(keys), "before": before, "after": after}


def title(opened: OpenedRun) -> str:
    return str(opened.choice.folder) if opened.choice.name == HERE else opened.choice.name
