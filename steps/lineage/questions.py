"""Lineage: where a model came from, and what a scenario, a judge or a batch touched, by the index (steps/lineage/reader.py).

python -m steps.lineage index                                     # adds run/ of this folder
python -m steps.lineage back models:/email_search@champion        # or models:/email_search/3, or an adapter's hash
python -m steps.lineage forward scenario 9ee353964b374d87         # what must be retrained, were it wrong
python -m steps.lineage rebuild                                   # from the files alone; `replies` is left alone
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from steps.core.errors import UserError
from steps.project.ledger import Ledger
from steps.registry import decisions
from steps.registry.decisions import Decision

if TYPE_CHECKING:
    pass

from steps.lineage.tables import EDGES, KINDS, NODES, WITHOUT_EFFECT, Thing, reading
from steps.registry.versions import Version, adapter_at, versions


@dataclasses.dataclass(frozen=True)
class Step:
    """An adapter and the update that made it; all but evaluations and runs is empty for the one that a run starts from."""

    adapter: str
    parents: list[str]  # adapters
    runs: list[
        dict[str, Any]
    ]  # run, iteration, md5 (the adapter's in DVC), dvc_lock (hash of the entries it comes from)
    evaluations: list[dict[str, Any]]  # md5, split, success, ci95, n
    metrics: list[dict[str, Any]]
    batches: list[str]  # md5s
    rewards: list[str]  # <batch>/<md5>
    judges: list[str]  # identities, of those that counted
    trajectories: list[str]
    scenarios: list[str]
    judgements: list[str]
    replies: list[str]  # keys of the answers in the ledger that judgements rest on


@dataclasses.dataclass(frozen=True)
class Back:
    """Where a model came from."""

    model: str  # as asked
    adapter: str
    versions: list[Version]
    steps: list[Step]  # the model's own first, the first adapter of its run last
    runs: dict[str, dict[str, Any]]  # by key: task, seed, params (hash), git_commit, git_dirty
    unlinked: list[str]  # adapters of `steps` of which nothing says what they were made from: the answer ends there
    verdicts: list[dict[str, Any]]  # in which the model challenged or was challenged: verdict, as (its side), …
    decisions: list[Decision]  # by which it became, stayed or was no longer champion, or was refused; oldest first


@dataclasses.dataclass(frozen=True)
class Touched:
    """An adapter that something touched, or that it evaluated."""

    adapter: str
    how: str  # directly, through an ancestor, evaluated
    runs: list[dict[str, Any]]
    versions: list[Version]


@dataclasses.dataclass(frozen=True)
class Forward:
    """What something touched: `trained` must be trained again if it was wrong, `evaluated` only evaluated again.

    A trajectory counts where its batch was trained on, also if it was quarantined or its group gave no signal: with other
    rewards it might have.
    """

    kind: str
    id: str
    trained: list[Touched]
    evaluated: list[Touched]
    unlinked: list[
        str
    ]  # adapters, in the index or the registry, of which that cannot be said: nothing says what made them
    verdicts: list[dict[str, Any]]  # that rest on it: to be given again
    decisions: list[Decision]  # by these verdicts


def back(model: str, ledger: Ledger, root: Path | None = None) -> Back:
    """From `models:/name@alias`, `models:/name/3` or an adapter's hash (or its beginning) to all that it came from."""
    known = versions(root or Path.cwd())
    with reading(ledger) as link:
        name = find(link, "adapter", adapter_at(model, known) or model)
        walk = _walk(("adapter", name), up=True)
        up = link.execute(_edges(walk, "child")).all()
        leaves = _edges(walk, "parent").where(EDGES.c.role.in_(("evaluated", "measured")), walk.c.kind == "adapter")
        down = link.execute(leaves).all()
        leaf = NODES.c.kind.in_(("run", "evaluation", "metrics"))
        data = {(row.kind, row.id): row.data for row in link.execute(sa.select(NODES).where(leaf))}
        linked = _linked(link)
        verdicts = _verdicts(link, [name])
        decided = [one for one in decisions.listed(link) if name in (one.adapter, one.champion_adapter)]
    made_of: dict[Thing, list[Any]] = {}
    for row in up:
        made_of.setdefault((row.child_kind, row.child_id), []).append(row)
    gave: dict[str, list[Any]] = {}
    for row in down:
        gave.setdefault(row.parent_id, []).append(row)
    steps: list[Step] = []
    order = [name]
    for one in order:  # grows: an adapter's parents follow it
        steps.append(_step(one, made_of, gave.get(one, []), data))
        order += [parent for parent in steps[-1].parents if parent not in order]
    described = {key: data[("run", key)] for key in sorted({run["run"] for one in steps for run in one.runs})}
    holding = [one for one in known if one.adapter_hash == name]
    unlinked = [one for one in order if one not in linked]
    return Back(model, name, holding, steps, described, unlinked, verdicts, decided)


def forward(kind: str, name: str, ledger: Ledger, root: Path | None = None) -> Forward:
    """From a thing of any of KINDS to the adapters, and versions in the registry, that it touched."""
    with reading(ledger) as link:
        name = find(link, kind, name)
        walk, own = _walk((kind, name), up=False), _walk((kind, name), up=False, without=("sampled", "continued"))
        trained = set(link.scalars(sa.select(walk.c.id).where(walk.c.kind == "adapter")))
        direct = set(link.scalars(sa.select(own.c.id).where(own.c.kind == "adapter")))
        tried = _edges(walk, "child").where(EDGES.c.role == "evaluated", EDGES.c.parent_kind == "adapter")
        evaluated = {row.parent_id for row in link.execute(tried)} - trained
        made = link.execute(sa.select(EDGES).where(EDGES.c.role == "made").order_by(EDGES.c.parent_id)).all()
        linked, adapters = _linked(link), set(link.scalars(sa.select(NODES.c.id).where(NODES.c.kind == "adapter")))
        adapters |= set(link.scalars(sa.select(EDGES.c.parent_id).where(EDGES.c.parent_kind == "adapter").distinct()))
        rest = set(link.scalars(sa.select(walk.c.id).where(walk.c.kind == "verdict")))
        verdicts = _verdicts(link, None, rest)
        decided = [one for one in decisions.listed(link) if one.verdict in rest]
    of: dict[str, list[dict[str, Any]]] = {}
    for row in made:
        of.setdefault(row.child_id, []).append({"run": row.parent_id} | row.data)
    known = versions(root or Path.cwd())
    found: dict[bool, list[Touched]] = {True: [], False: []}
    places = {one: [(run["run"], run["iteration"]) for run in of.get(one, [])] for one in trained | evaluated}
    for one in sorted(places, key=lambda one: (places[one], one)):
        how = "evaluated" if one in evaluated else "directly" if one in direct else "through an ancestor"
        holding = [version for version in known if version.adapter_hash == one]
        found[one in trained].append(Touched(one, how, of.get(one, []), holding))
    unlinked = (adapters | {one.adapter_hash for one in known}) - linked - trained
    return Forward(kind, name, found[True], found[False], sorted(unlinked), verdicts, decided)


def _verdicts(
    link: sa.Connection, adapters: Sequence[str] | None = None, among: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Verdicts on one of these adapters, or among these: {"verdict": its hash, "as": the adapter's side, …}."""
    rows = link.execute(sa.select(NODES.c.id, NODES.c.data).where(NODES.c.kind == "verdict").order_by(NODES.c.id))
    found: list[dict[str, Any]] = []
    for name, data in rows:
        sides = [side for side, shown in data["sides"].items() if shown["adapter_hash"] in (adapters or ())]
        if (among is not None and name in among) or sides:
            found.append({"verdict": name, "as": sides[0] if sides else None} | data)
    return found


def _linked(link: sa.Connection) -> set[str]:
    """The adapters whose making is recorded: trained on a batch, or what a run starts from."""
    rows = link.execute(sa.select(EDGES).where(EDGES.c.role.in_(("trained", "made")), EDGES.c.child_kind == "adapter"))
    return {row.child_id for row in rows if row.role == "trained" or row.data["iteration"] == "000"}


def find(link: sa.Connection, kind: str, text: str) -> str:
    """The id of a thing by itself, its beginning, or its name within a file. UserError where that is none or several."""
    if kind not in KINDS:
        raise UserError(f"{kind!r} is no kind of thing in the ledger; there are {', '.join(KINDS)}")
    places = [(NODES.c.kind, NODES.c.id), (EDGES.c.parent_kind, EDGES.c.parent_id)]
    places.append((EDGES.c.child_kind, EDGES.c.child_id))

    def those(like: Callable[[Any], Any]) -> list[str]:
        parts = [sa.select(name).where(of == kind, like(name)).distinct().limit(6) for of, name in places]
        return sorted({name for part in parts for name in link.scalars(part)})

    found = those(lambda name: name == text)
    if not found and text:
        found = those(lambda name: name.startswith(text, autoescape=True))
        found += those(lambda name: name.endswith(f"/{text}", autoescape=True))
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{kind} {text} is one of several: {', '.join(found[:5])}{', …' if len(found) > 5 else ''}")
    number = link.execute(sa.select(sa.func.count()).where(NODES.c.kind == kind)).scalar_one()
    advice = "`python -m steps.lineage index` adds what a folder's run/ holds"
    raise UserError(f"the ledger knows no {kind} {text!r} (it has {number} nodes of that kind); {advice}")


def _walk(start: Thing, up: bool, without: Sequence[str] = ()) -> sa.CTE:
    """(kind, id) of the start and of all above or below it; each once, so that it ends."""
    near, far = ("child", "parent") if up else ("parent", "child")
    walk = sa.select(
        sa.cast(sa.literal(start[0]), sa.String).label("kind"), sa.cast(sa.literal(start[1]), sa.String).label("id")
    )
    found = walk.cte("walk", recursive=True)
    further = sa.select(EDGES.c[f"{far}_kind"], EDGES.c[f"{far}_id"]).join(found, _at(found, near))
    return found.union(further.where(EDGES.c.role.not_in([*WITHOUT_EFFECT, *without])))


def _at(walk: sa.CTE, end: str) -> sa.ColumnElement[bool]:
    return sa.and_(EDGES.c[f"{end}_kind"] == walk.c.kind, EDGES.c[f"{end}_id"] == walk.c.id)


def _edges(walk: sa.CTE, end: str) -> sa.Select[Any]:
    """The edges with this end in a walk, in order."""
    found = sa.select(EDGES).join(walk, _at(walk, end)).where(EDGES.c.role.not_in(WITHOUT_EFFECT))
    return found.order_by(*EDGES.primary_key)


def _step(name: str, made_of: Mapping[Thing, list[Any]], gave: list[Any], data: Mapping[Thing, dict[str, Any]]) -> Step:
    def parents(of: Iterable[Thing], role: str, kind: str) -> list[Thing]:
        rows = [row for one in of for row in made_of.get(one, []) if (row.role, row.parent_kind) == (role, kind)]
        return sorted({(kind, row.parent_id) for row in rows})

    def ids(things: Iterable[Thing]) -> list[str]:
        return [name for _, name in things]

    adapter = [("adapter", name)]
    batches, rewards = parents(adapter, "trained", "batch"), parents(adapter, "trained", "rewards")
    played, judgements = parents(batches, "collected", "trajectory"), parents(rewards, "counted", "judgement")
    return Step(
        adapter=name,
        parents=ids(parents(adapter, "continued", "adapter")),
        runs=[{"run": row.parent_id} | row.data for row in made_of.get(adapter[0], []) if row.role == "made"],
        evaluations=[
            {"md5": row.child_id} | data[("evaluation", row.child_id)] for row in gave if row.role == "evaluated"
        ],
        metrics=[{"md5": row.child_id} | data[("metrics", row.child_id)] for row in gave if row.role == "measured"],
        batches=ids(batches),
        rewards=ids(rewards),
        judges=ids(parents([*rewards, *judgements], "judged", "judge")),
        trajectories=ids(played),
        scenarios=ids(parents(played, "attempted", "scenario")),
        judgements=ids(judgements),
        replies=ids(parents(judgements, "answered", "reply")),
    )
