"""Answers two questions from the lineage index: where a model came from, and what a scenario, judge or batch affected.

See addons/lineage/__main__.py for the commands, and addons/lineage/reader.py for what the index holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from addons.lineage.tables import EDGES, KINDS, NODES, WITHOUT_EFFECT, NodeKey, reading
from steps.core.errors import UserError
from steps.project.ledger import Ledger
from steps.registry import decisions
from steps.registry.decisions import Decision
from steps.registry.model import Version, adapter_at, versions


@dataclasses.dataclass(frozen=True)
class AdapterOrigin:
    """An adapter and the update that trained it. A run's first adapter has only evaluations and runs."""

    adapter: str
    parents: list[str]  # adapters
    runs: list[dict[str, Any]]  # run, iteration, md5 (the adapter's in DVC), dvc_lock (hash of the entries behind it)
    evaluations: list[dict[str, Any]]  # md5, split, success, ci95, n, and clusters where they are known
    metrics: list[dict[str, Any]]
    batches: list[str]  # md5s
    rewards: list[str]  # <batch>/<md5>
    judges: list[str]  # identities of the judges that counted
    trajectories: list[str]
    scenarios: list[str]
    judgements: list[str]
    replies: list[str]  # keys of the answers in the ledger that the judgements rest on


@dataclasses.dataclass(frozen=True)
class Ancestry:
    """Where a model came from."""

    model: str  # as asked
    adapter: str
    versions: list[Version]
    steps: list[AdapterOrigin]  # the model's own first, the first adapter of its run last
    runs: dict[str, dict[str, Any]]  # by key: task, seed, params (hash), git_commit, git_dirty
    unlinked: list[str]  # adapters of `steps` whose training is not in the index: the answer ends there
    verdicts: list[dict[str, Any]]  # in which the model challenged or was challenged: verdict, as (its side), …
    decisions: list[Decision]  # that made it champion, kept it, replaced it or refused it; oldest first


@dataclasses.dataclass(frozen=True)
class Touched:
    """An adapter that something was used to train, or to evaluate."""

    adapter: str
    how: str  # directly, through an ancestor, evaluated
    runs: list[dict[str, Any]]
    versions: list[Version]


@dataclasses.dataclass(frozen=True)
class Impact:
    """What something affected: if it was wrong, `trained` must be trained again, and `evaluated` only evaluated again.

    Every trajectory of a trained batch counts, also one that was quarantined or whose group gave no signal: with other
    rewards it might have been trained on.
    """

    kind: str
    id: str
    trained: list[Touched]
    evaluated: list[Touched]
    unlinked: list[str]  # adapters, in the index or the registry, of which nothing says how they were trained
    verdicts: list[dict[str, Any]]  # that rest on it, and must be given again
    decisions: list[Decision]  # by these verdicts


def back(model: str, ledger: Ledger, root: Path | None = None) -> Ancestry:
    """Everything that `models:/name@alias`, `models:/name/3` or an adapter's hash (or its beginning) came from."""
    registered = versions(root or Path.cwd())
    with reading(ledger) as connection:
        name = find(connection, "adapter", adapter_at(model, registered) or model)
        walk = _walk(("adapter", name), up=True)
        up = connection.execute(_edges(walk, "child")).all()
        leaves = _edges(walk, "parent").where(EDGES.c.role.in_(("evaluated", "measured")), walk.c.kind == "adapter")
        down = connection.execute(leaves).all()
        leaf = NODES.c.kind.in_(("run", "evaluation", "metrics"))
        data = {(row.kind, row.id): row.data for row in connection.execute(sa.select(NODES).where(leaf))}
        linked = _linked(connection)
        verdicts = _verdicts(connection, name)
        listed = decisions.listed(connection)
    decided = [decision for decision in listed if name in (decision.adapter, decision.champion_adapter)]
    parents: dict[NodeKey, list[Any]] = {}  # edges by their child
    for row in up:
        parents.setdefault((row.child_kind, row.child_id), []).append(row)
    results: dict[str, list[Any]] = {}  # edges to evaluations and metrics, by adapter
    for row in down:
        results.setdefault(row.parent_id, []).append(row)
    steps: list[AdapterOrigin] = []
    order = [name]
    for adapter in order:  # grows: an adapter's parents follow it
        steps.append(_origin(adapter, parents, results.get(adapter, []), data))
        order += [parent for parent in steps[-1].parents if parent not in order]
    described = {key: data[("run", key)] for key in sorted({run["run"] for step in steps for run in step.runs})}
    own = [version for version in registered if version.adapter_hash == name]
    unlinked = [adapter for adapter in order if adapter not in linked]
    return Ancestry(model, name, own, steps, described, unlinked, verdicts, decided)


def forward(kind: str, name: str, ledger: Ledger, root: Path | None = None) -> Impact:
    """The adapters, and versions in the registry, that a node of any of KINDS affected."""
    with reading(ledger) as connection:
        name = find(connection, kind, name)
        walk = _walk((kind, name), up=False)
        own = _walk((kind, name), up=False, without=("sampled", "faced", "continued"))
        trained = set(connection.scalars(sa.select(walk.c.id).where(walk.c.kind == "adapter")))
        direct = set(connection.scalars(sa.select(own.c.id).where(own.c.kind == "adapter")))
        tried = _edges(walk, "child").where(EDGES.c.role == "evaluated", EDGES.c.parent_kind == "adapter")
        evaluated = {row.parent_id for row in connection.execute(tried)} - trained
        makings = connection.execute(sa.select(EDGES).where(EDGES.c.role == "made").order_by(EDGES.c.parent_id)).all()
        linked, kinds = _linked(connection), sa.select(NODES.c.id).where(NODES.c.kind == "adapter")
        parents = sa.select(EDGES.c.parent_id).where(EDGES.c.parent_kind == "adapter").distinct()
        adapters = {*connection.scalars(kinds), *connection.scalars(parents)}
        resting = set(connection.scalars(sa.select(walk.c.id).where(walk.c.kind == "verdict")))
        verdicts = _verdicts(connection, among=resting)
        decided = [decision for decision in decisions.listed(connection) if decision.verdict in resting]
    runs: dict[str, list[dict[str, Any]]] = {}  # by adapter
    for row in makings:
        runs.setdefault(row.child_id, []).append({"run": row.parent_id} | row.data)
    registered = versions(root or Path.cwd())
    touched: dict[bool, list[Touched]] = {True: [], False: []}
    places = {name: [(run["run"], run["iteration"]) for run in runs.get(name, [])] for name in trained | evaluated}
    for adapter in sorted(places, key=lambda name: (places[name], name)):
        how = "evaluated" if adapter in evaluated else "directly" if adapter in direct else "through an ancestor"
        holding = [version for version in registered if version.adapter_hash == adapter]
        touched[adapter in trained].append(Touched(adapter, how, runs.get(adapter, []), holding))
    unlinked = (adapters | {version.adapter_hash for version in registered}) - linked - trained
    return Impact(kind, name, touched[True], touched[False], sorted(unlinked), verdicts, decided)


def data_sets(keys: Collection[str], ledger: Ledger) -> dict[str, str]:
    """The versions of ingested data sets that conversations with these keys are in: DVC's md5 -> path, by path and md5."""
    with ledger.reading() as connection:
        used = EDGES.c.role == "used", EDGES.c.parent_kind == "conversation", EDGES.c.parent_id.in_(sorted(keys))
        names = set(connection.scalars(sa.select(EDGES.c.child_id).where(*used)))
        part = EDGES.c.role == "part", EDGES.c.parent_kind == "dataset", EDGES.c.parent_id.in_(sorted(names))
        names |= set(connection.scalars(sa.select(EDGES.c.child_id).where(*part)))
        nodes = sa.select(NODES.c.id, NODES.c.data).where(NODES.c.kind == "dataset", NODES.c.id.in_(sorted(names)))
        paths = {row.id: str(row.data.get("path")) for row in connection.execute(nodes)}
    return dict(sorted(paths.items(), key=lambda pair: (pair[1], pair[0])))


def _verdicts(
    connection: sa.Connection, adapter: str | None = None, among: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Verdicts on this adapter, or among these: {"verdict": its hash, "as": the adapter's side, …}."""
    rows = connection.execute(sa.select(NODES.c.id, NODES.c.data).where(NODES.c.kind == "verdict").order_by(NODES.c.id))
    verdicts: list[dict[str, Any]] = []
    for name, data in rows:
        sides = [side for side, shown in data["sides"].items() if shown["adapter_hash"] == adapter]
        if name in among or sides:
            verdicts.append({"verdict": name, "as": sides[0] if sides else None} | data)
    return verdicts


def _linked(connection: sa.Connection) -> set[str]:
    """The adapters of which the index says how they were made: trained on a batch, or drawn at the start of a run."""
    making = sa.select(EDGES).where(EDGES.c.role.in_(("trained", "made")), EDGES.c.child_kind == "adapter")
    rows = connection.execute(making)
    return {row.child_id for row in rows if row.role == "trained" or row.data["iteration"] == "000"}


def find(connection: sa.Connection, kind: str, text: str) -> str:
    """The id of a node, from the id, its beginning, or a name within a file. UserError where none or several match."""
    if kind not in KINDS:
        raise UserError(f"{kind!r} is no kind of thing in the ledger; there are {', '.join(KINDS)}")
    columns = [(NODES.c.kind, NODES.c.id), (EDGES.c.parent_kind, EDGES.c.parent_id)]
    columns.append((EDGES.c.child_kind, EDGES.c.child_id))

    def matching(condition: Callable[[Any], Any]) -> list[str]:
        parts = [sa.select(ids).where(kinds == kind, condition(ids)).distinct().limit(6) for kinds, ids in columns]
        return sorted({name for part in parts for name in connection.scalars(part)})

    names = matching(lambda ids: ids == text)
    if not names and text:
        names = matching(lambda ids: ids.startswith(text, autoescape=True))
        names += matching(lambda ids: ids.endswith(f"/{text}", autoescape=True))
    if len(names) == 1:
        return names[0]
    if names:
        raise UserError(f"{kind} {text} is one of several: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}")
    number = connection.execute(sa.select(sa.func.count()).where(NODES.c.kind == kind)).scalar_one()
    advice = "`.venv/bin/python -m addons.lineage index` adds what a folder's run/ holds"
    raise UserError(f"the ledger knows no {kind} {text!r} (it has {number} nodes of that kind); {advice}")


def _walk(start: NodeKey, up: bool, without: Sequence[str] = ()) -> sa.CTE:
    """(kind, id) of the start and of everything above or below it, each once, so that the walk ends."""
    near, far = ("child", "parent") if up else ("parent", "child")
    first = sa.select(
        sa.cast(sa.literal(start[0]), sa.String).label("kind"), sa.cast(sa.literal(start[1]), sa.String).label("id")
    )
    walk = first.cte("walk", recursive=True)
    further = sa.select(EDGES.c[f"{far}_kind"], EDGES.c[f"{far}_id"]).join(walk, _at(walk, near))
    return walk.union(further.where(EDGES.c.role.not_in([*WITHOUT_EFFECT, *without])))


def _at(walk: sa.CTE, end: str) -> sa.ColumnElement[bool]:
    return sa.and_(EDGES.c[f"{end}_kind"] == walk.c.kind, EDGES.c[f"{end}_id"] == walk.c.id)


def _edges(walk: sa.CTE, end: str) -> sa.Select[Any]:
    """The edges that have this end in a walk, in order."""
    edges = sa.select(EDGES).join(walk, _at(walk, end)).where(EDGES.c.role.not_in(WITHOUT_EFFECT))
    return edges.order_by(*EDGES.primary_key)


def _origin(
    name: str, edges: Mapping[NodeKey, list[Any]], results: list[Any], data: Mapping[NodeKey, dict[str, Any]]
) -> AdapterOrigin:
    """An adapter's origin, from the edges of a walk by their child, and those to its evaluations and metrics."""

    def parents(child: str, names: Iterable[str], role: str, kind: str) -> list[str]:
        rows = [row for name in names for row in edges.get((child, name), [])]
        return sorted({row.parent_id for row in rows if (row.role, row.parent_kind) == (role, kind)})

    batches, rewards = parents("adapter", [name], "trained", "batch"), parents("adapter", [name], "trained", "rewards")
    trajectories = parents("batch", batches, "collected", "trajectory")
    judgements = parents("rewards", rewards, "counted", "judgement")
    judges = {*parents("rewards", rewards, "judged", "judge"), *parents("judgement", judgements, "judged", "judge")}
    leaves = [(row.role, {"md5": row.child_id} | data[(row.child_kind, row.child_id)]) for row in results]
    return AdapterOrigin(
        adapter=name,
        parents=parents("adapter", [name], "continued", "adapter"),
        runs=[{"run": row.parent_id} | row.data for row in edges.get(("adapter", name), []) if row.role == "made"],
        evaluations=[leaf for role, leaf in leaves if role == "evaluated"],
        metrics=[leaf for role, leaf in leaves if role == "measured"],
        batches=batches,
        rewards=rewards,
        judges=sorted(judges),
        trajectories=trajectories,
        scenarios=parents("trajectory", trajectories, "attempted", "scenario"),
        judgements=judgements,
        replies=parents("judgement", judgements, "answered", "reply"),
    )
