"""Lineage: where a model came from, and what a scenario, a judge or a batch touched, by the index (steps/lineage_index.py).

python -m steps.lineage index                                     # adds run/ of this folder
python -m steps.lineage back models:/email_search@champion        # or models:/email_search/3, or an adapter's hash
python -m steps.lineage forward scenario 9ee353964b374d87         # what must be retrained, were it wrong
python -m steps.lineage rebuild                                   # from the files alone; `replies` is left alone
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from steps import decisions, dotenv, register
from steps.decisions import Decision
from steps.ledger import Ledger
from steps.stage import UserError, exit_code

if TYPE_CHECKING:
    from rich.console import Console

from steps.lineage_index import (
    EDGES,
    KINDS,
    NODES,
    SHORT,
    UNLINKED,
    WITHOUT_EFFECT,
    Indexed,
    Thing,
    counts,
    index,
    reading,
    rebuild,
)

# --- Questions


@dataclasses.dataclass(frozen=True)
class Version:
    """A version of a registered model, as MLflow has it now."""

    name: str
    version: str
    aliases: list[str]
    adapter_hash: str


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
        name = find(link, "adapter", of_registry(model, known) or model)
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


# --- The registry


def versions(root: Path) -> list[Version]:
    """All that hold an adapter, newest first; none where there is no store yet. UserError where it cannot be reached."""
    elsewhere = os.environ.get("MLFLOW_TRACKING_URI") or os.environ.get("MLFLOW_REGISTRY_URI")
    if not elsewhere and not (root / ".flywheel" / "mlflow.db").exists():
        return []
    with register.explained(register.address(root)):
        client = register.connect(root)
        aliases: dict[tuple[str, str], list[str]] = {}
        for model in _pages(client.search_registered_models):
            for alias, version in client.get_registered_model(model.name).aliases.items():
                aliases.setdefault((model.name, str(version)), []).append(alias)
        found = [
            Version(one.name, str(one.version), sorted(aliases.get((one.name, str(one.version)), [])), name)
            for one in _pages(client.search_model_versions)
            if (name := one.tags.get("adapter_hash"))
        ]
    return sorted(found, key=lambda one: (one.name, -int(one.version)))


def _pages(search: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(page_token=token)
        yield from page
        if not (token := page.token):
            return


def of_registry(model: str, known: Sequence[Version]) -> str | None:
    """The adapter of a models:/ address, None where it is no such address. UserError where there is no such version."""
    if not model.startswith("models:"):
        return None
    address = re.fullmatch(r"models:/([^/@]+)(?:@([^/@]+)|/([0-9]+))", model)
    if address is None:
        raise UserError(
            f"{model} is no version of a registered model: write models:/<name>@<alias> or models:/<name>/<number>"
        )
    name, alias, number = address.groups()
    of = [one for one in known if one.name == name]
    for one in of:
        if one.version == number or alias in one.aliases:
            return one.adapter_hash
    there = ", ".join(" ".join([one.version, *(f"@{alias}" for alias in one.aliases)]) for one in of)
    raise UserError(f"the registry has no {model} that holds an adapter; versions of {name}: {there or 'none'}")


# --- For a person


def show_back(found: Back, console: Console) -> None:
    """The versions, a row an adapter, then the runs."""
    console.print(f"{found.model}: adapter {found.adapter}{_holding(found.versions)}")
    table = _table("iteration", "adapter", "batch", "trajectories", "scenarios", "judges", "judge calls", "success")
    for one in found.steps:
        tried = {evaluation["split"]: evaluation for evaluation in one.evaluations}
        told = ", ".join(f"{split} {tried[split]['success']:.3f} of {tried[split]['n']}" for split in sorted(tried))
        counted = [len(one.trajectories), len(one.scenarios)]
        row = [_where(one.runs), one.adapter, ", ".join(md5[:SHORT] for md5 in one.batches), *map(str, counted)]
        table.add_row(*row, ", ".join(one.judges), str(len(one.replies)), told)
    console.print(table)
    together = {name for one in found.steps for name in one.scenarios}
    played = sum(len(one.trajectories) for one in found.steps)
    calls = len({key for one in found.steps for key in one.replies})
    if found.unlinked:
        console.print(f"NOT WHOLE: {UNLINKED} {', '.join(found.unlinked)}; `python -m steps.lineage index` says why")
    console.print(f"{played} trajectories of {len(together)} scenarios, {calls} judge calls; --json has their ids")
    for key, run in found.runs.items():
        commit = run.get("git_commit") or "no commit"
        changed = " (and changes not committed)" if run.get("git_dirty") else ""
        console.print(f"run {key}: {run.get('task')}, seed {run.get('seed')}, git {commit}{changed}")
    for one in found.steps[:1]:
        for run in one.runs:
            console.print(f"in DVC: {run['md5']}; hash of what dvc.lock says of its making: {run.get('dvc_lock')}")
    show_decided(found.verdicts, found.decisions, console)


def show_forward(found: Forward, console: Console) -> None:
    console.print(f"{found.kind} {found.id}: {len(found.trained)} adapters to train again if it was wrong")
    table = _table("iteration", "adapter", "touched", "versions")
    for one in [*found.trained, *found.evaluated]:
        table.add_row(_where(one.runs), one.adapter, one.how, _holding(one.versions).removeprefix(", "))
    if table.rows:
        console.print(table)
    if found.evaluated:
        console.print(f"{len(found.evaluated)} more were evaluated on it, not trained: evaluate them again")
    if found.verdicts:
        console.print(
            f"verdicts that rest on it, to be given again by `python -m flows.promote`: {len(found.verdicts)}"
        )
    show_decided(found.verdicts, found.decisions, console)
    if found.unlinked:
        console.print(f"NOT KNOWN: {UNLINKED} {', '.join(found.unlinked)}; `python -m steps.lineage index` says why")


def show_decided(verdicts: list[dict[str, Any]], decided: list[Decision], console: Console) -> None:
    for one in verdicts:
        role = f" (here: {one['as']})" if one["as"] else ""
        how, who = "for" if one["promoted"] else "against", one["sides"]["challenger"]["adapter_hash"]
        counts = (
            f"{len(one['wins'])} won and {len(one['losses'])} lost of {one['n']} scenarios against the {one['against']}"
        )
        console.print(f"verdict {one['verdict']}{role} {how} {who}: {one['reason']}; {counts}")
    for each in decided:
        before = f", champion before: {each.champion}" if each.champion else ""
        console.print(f"{each.created} {each.event} of {each.model} {each.version}{before}: {each.why}")


def _where(runs: list[dict[str, Any]]) -> str:
    return ", ".join(f"{run['iteration']} of run {run['run'][:6]}" for run in runs) or "unknown"


def _holding(of: list[Version]) -> str:
    return "".join(f", {one.name} {one.version}" + "".join(f" @{alias}" for alias in one.aliases) for one in of)


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in ("trajectories", "scenarios", "judge calls") else "left")
    return table


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    about = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser("python -m steps.lineage", description=about, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("index", "add what run/ holds"), ("rebuild", "make the index anew, of these folders alone")):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "roots", nargs="*", type=Path, default=[Path()], metavar="ROOT", help="default: this folder"
        )
    command = commands.add_parser("back", help="where a model came from")
    command.add_argument("model", help="models:/<name>@<alias>, models:/<name>/<number>, or an adapter's hash")
    command.add_argument("--json", action="store_true", help="everything, with all ids")
    command = commands.add_parser("forward", help="what must be retrained, were this wrong")
    command.add_argument("kind", help=", ".join(KINDS))
    command.add_argument("id", help="or its beginning, or a trajectory's name")
    command.add_argument("--json", action="store_true", help="everything")
    return parser.parse_args(words)


def run(words: argparse.Namespace) -> None:
    """Do what the command line says."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=160)
    with Ledger() as ledger:
        if words.command in ("back", "forward"):
            found: Back | Forward
            found = back(words.model, ledger) if words.command == "back" else forward(words.kind, words.id, ledger)
            if words.json:
                print(json.dumps(dataclasses.asdict(found), indent=2))
            elif isinstance(found, Back):
                show_back(found, console)
            else:
                show_forward(found, console)
            return
        lost: dict[str, dict[str, Any]] = {}
        if words.command == "rebuild":
            done, lost = rebuild(words.roots, ledger)
        else:
            totals = [index(root, ledger) for root in words.roots]
            texts = [text for one in totals for text in one.left_out]
            done = Indexed(sum(one.nodes for one in totals), sum(one.edges for one in totals), texts)
        for text in done.left_out:
            console.print(f"left out: {text}")
        for key, about in lost.items():
            back_again = f"check out commit {about.get('git_commit')} or its run, `dvc checkout`, and index it"
            console.print(f"run {key} is no longer in the index, for its files are not here: {back_again}")
        kinds = ", ".join(f"{number} {kind}" for kind, number in counts(ledger).items())
        console.print(f"{done.nodes} nodes and {done.edges} edges added; the ledger has {kinds}")


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    dotenv.load(Path.cwd())
    return exit_code(lambda: run(parse(words)))


if __name__ == "__main__":
    sys.exit(main())
