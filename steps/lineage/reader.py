"""The lineage index: what run/ and dvc.lock say of what was made of what, as two tables beside the ledger's `replies`.

Two tables, `nodes(kind, id, data)` and `edges(parent, role, child, data)`: both questions are a walk of unknown depth over
things of many kinds, which this makes one recursive query, the same on SQLite and PostgreSQL, with an index each way.
A table a kind would need a join a kind, and a new one for each new kind. What is whose parent (edge roles in brackets):

    run [made] adapter [sampled] batch [trained] adapter; adapter [continued] adapter
    scenario [attempted] trajectory [collected] batch; trajectory [scored] rewards [trained] adapter
    rule, criteria: judge [judged] rewards. A model: judge [judged] judgement [counted, or beside: weight 0] rewards
    scenario [compared] judgement; reply [answered, or probed: a test of the judge itself] judgement
    adapter [measured] metrics; adapter, scenario [evaluated] evaluation; adapter [decided] receipt
    adapter [challenged, or opposed: champion, base], evaluation [weighed] verdict

An id is a hash of the content, or holds one (of a trajectory and of rewards <batch>/<name>, of a judgement <file>/<name>),
so a row never changes: indexing the same files again adds nothing, another run adds rows. A link is made where dvc.lock
recorded it and the files that lie there are the recorded ones; all else is listed as left out. Of a run, the git commit is
the one at its first indexing, and a rebuild keeps it: no file of the run has it.

A verdict comes from run/promote/<adapter>/verdict.json, and from the table of decisions (steps/registry/decisions.py),
which keeps it
when that folder is gone. Left out: trajectories of evaluations, what else lies in run/ beside the chain, versions and
aliases, which are MLflow's and asked for live.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.core.errors import UserError
from steps.core.parquet import read_columns
from steps.core.records import OUTPUTS
from steps.project import chain, git
from steps.project.lock import Lock, digest, lineage, read_lock, run_key

if TYPE_CHECKING:
    pass
from steps.lineage.tables import PLAYERS, SHORT, Rows, Thing, plain
from steps.project.hashes import file_md5, folder_md5


class Batch(NamedTuple):
    """A batch that was read."""

    thing: Thing
    adapters: set[str]  # that sampled it
    names: set[str]  # of its trajectories


class Reader:
    """Reads the run of a project's folder; `runs` are those whose git commit is known already."""

    def __init__(self, root: Path, runs: Mapping[str, dict[str, Any]]) -> None:
        self.root, self.runs, self.left_out = root, runs, list[str]()
        self.chain, self.lock = chain.read_chain(root), read_lock(root)
        self.made = {out["path"]: out.get("md5") for entry in self.lock.values() for out in entry.get("outs", [])}
        self.run = run_key(self.lock)
        if self.run is None:
            self.left_out.append("dvc.lock has no whole first iteration: which run this is cannot be said yet")

    def parts(self, iterations: Sequence[str] | None) -> Iterator[Rows]:
        """The run, each iteration (000: the scenarios and the adapter that it starts from) and the receipt."""
        yield self.start(iterations is None or "000" in iterations)
        chained = self.chain.get("iterations") or {}
        if unknown := sorted(set(iterations or ()) - {"000", *chained}):
            raise UserError(f"chain.yaml has no iteration {', '.join(unknown)}; it has 000, {', '.join(chained)}")
        for number in iterations if iterations is not None else ["000", *chained]:
            yield self.iteration(number, chained[number]["prev"] if number in chained else None)
        if iterations is None:
            for folder in sorted((self.root / "run").glob("[0-9][0-9][0-9]")):
                if folder.name not in {"000", *chained}:
                    self.left_out.append(f"run/{folder.name} is not in chain.yaml")
        yield self.receipt()
        if iterations is None:
            for file in sorted((self.root / "run/promote").glob("*/verdict.json")):
                yield self.verdict(file.parent.relative_to(self.root).as_posix())

    def start(self, scenarios: bool) -> Rows:
        """The run, and its scenarios, which stay the same from iteration to iteration."""
        rows = Rows()
        if scenarios and self.md5("run/scenarios"):
            for path in sorted((self.root / "run/scenarios").glob("*.parquet")):
                for row in self.table(path.relative_to(self.root).as_posix(), ["id", "task", "split"]):
                    rows.node(("scenario", row["id"]), task=row["task"], split=row["split"])
        if self.run is not None:
            rows.node(("run", self.run), **(self.runs.get(self.run) or describe(self.root, self.lock)))
        return rows

    def iteration(self, number: str, previous: str | None) -> Rows:
        rows = Rows()
        adapter = self.adapter(rows, number, "initialise" if previous is None else f"update@{number}")
        if previous is not None:
            batch = self.batch(rows, number)
            rewards = self.rewards(rows, number, batch) if batch else None
            if adapter and batch and rewards:
                self.update(rows, number, previous, adapter, batch, rewards)
        if number in (self.chain.get("evaluated") or ()):
            self.evaluation(rows, f"run/{number}/evaluation")
        if number in (self.chain.get("tested") or {}).values():
            self.evaluation(rows, f"run/{number}/test")
        return rows

    def adapter(self, rows: Rows, number: str, maker: str) -> Thing | None:
        from steps.policy.adapter import adapter_hash

        path = f"run/{number}/adapter"
        if not (md5 := self.md5(path)):
            return None
        try:
            name = adapter_hash(self.root / path)
        except FileNotFoundError as problem:
            raise UserError(
                f"{problem.filename} is missing in {path}; `dvc checkout` brings the adapter back"
            ) from None
        state = self.state(number)
        if state is not None and state != name:
            self.left_out.append(f"{path} is {name}, but run/{number}/checkpoint is of adapter {state}")
            return None
        adapter = rows.node(("adapter", name))
        if self.run is not None and maker in self.lock:
            recorded = lineage(self.root, self.root / path)
            rows.edge(("run", self.run), "made", adapter, iteration=number, md5=md5, **recorded)
        return adapter

    def batch(self, rows: Rows, number: str) -> Batch | None:
        path = f"run/{number}/trajectories.parquet"
        if not (md5 := self.md5(path)):
            return None
        found = self.table(path, ["id", "scenario_id", "adapter_hash", "stop_reason"])
        made = Batch(("batch", md5), {row["adapter_hash"] for row in found}, {row["id"] for row in found})
        rows.node(made.thing, trajectories=len(found))
        for row in found:
            one = rows.node(trajectory(md5, row["id"]), stop_reason=row["stop_reason"])
            rows.edge(("scenario", row["scenario_id"]), "attempted", one)
            rows.edge(one, "collected", made.thing)
        for name in made.adapters:
            rows.edge(("adapter", name), "sampled", made.thing)
        return made

    def rewards(self, rows: Rows, number: str, batch: Batch) -> Thing | None:
        path = f"run/{number}/rewards.parquet"
        if not (md5 := self.md5(path)):
            return None
        found = self.table(path, ["trajectory_id", "name", "score", "success"])
        if {row["trajectory_id"] for row in found} != batch.names:
            self.left_out.append(f"{path} is of other trajectories than run/{number}/trajectories.parquet")
            return None
        counted = sorted({name for row in found for name in row["name"].split("+")})
        # Two batches may well have the same rewards: the file names trajectories, which another batch names alike.
        rewards = rows.node(("rewards", f"{batch.thing[1][:SHORT]}/{md5}"), counted=counted)
        for row in found:
            given = {"name": row["name"], "score": row["score"], "success": row["success"]}
            rows.edge(trajectory(batch.thing[1], row["trajectory_id"]), "scored", rewards, **plain(given))
        for name in [one for one in counted if one != "ruler"]:
            if f"score@{number}" in self.lock:
                judge = rows.node(("judge", code_judge(name, self.lock[f"score@{number}"])), name=name)
                rows.edge(judge, "judged", rewards)
            else:
                self.left_out.append(f"dvc.lock has no score@{number}: which {name} judged {path} is not known")
        self.judgements(rows, number, rewards, "counted" if "ruler" in counted else "beside")
        return rewards

    def judgements(self, rows: Rows, number: str, rewards: Thing, role: str) -> None:
        from pydantic import ValidationError

        from steps.core.records import Judgement

        path = f"run/{number}/judgements.jsonl"
        if not (md5 := self.md5(path)):
            return
        for place, line in enumerate((self.root / path).read_text(encoding="utf-8").splitlines(), 1):
            try:
                one = Judgement.model_validate_json(line)
            except ValidationError as problem:
                raise unreadable(f"{path}, line {place}", "judgement", problem.errors()[0]["msg"]) from None
            judge = rows.node(("judge", one.judge), name="ruler")
            thing = rows.node(("judgement", f"{md5[:SHORT]}/{one.scenario_id}"), problem=one.problem, cost=one.cost)
            rows.edge(judge, "judged", thing)
            rows.edge(("scenario", one.scenario_id), "compared", thing)
            rows.edge(thing, role, rewards)
            for key in [key for order in one.orders for key in order.calls]:
                rows.edge(("reply", key), "answered", thing)
            for key in one.probe.calls if one.probe else ():
                rows.edge(("reply", key), "probed", thing)

    def update(self, rows: Rows, number: str, previous: str, adapter: Thing, batch: Batch, rewards: Thing) -> None:
        """Link an adapter to what it was trained on, as far as dvc.lock and the files agree."""
        unlinked = f"run/{number}/adapter is not linked to its batch"
        name = f"update@{number}"
        read = {dep["path"]: dep.get("md5") for dep in self.lock.get(name, {}).get("deps", [])}
        wanted = {
            f"run/{number}/trajectories.parquet": batch.thing[1],
            f"run/{number}/rewards.parquet": rewards[1].rpartition("/")[2],
            f"run/{previous}/checkpoint": self.made.get(f"run/{previous}/checkpoint"),
        }
        before = self.state(previous) or next(iter(batch.adapters), "")
        if name not in self.lock:
            self.left_out.append(f"dvc.lock has no {name}: {unlinked}")
        elif changed := [path for path, md5 in wanted.items() if read.get(path) != md5]:
            self.left_out.append(f"{', '.join(changed)} changed after {name}: {unlinked} (`dvc repro` trains it again)")
        elif batch.adapters != {before}:
            sampled = ", ".join(sorted(batch.adapters)) or "nothing"
            self.left_out.append(f"batch {number} is of {sampled}, run/{previous}/checkpoint of {before}: {unlinked}")
        else:
            rows.edge(batch.thing, "trained", adapter)
            rows.edge(rewards, "trained", adapter)
            rows.edge(("adapter", before), "continued", adapter)
            path = f"run/{number}/metrics.json"
            if md5 := self.md5(path):
                rows.edge(adapter, "measured", rows.node(("metrics", md5), **plain(self.json(path))))

    def evaluation(self, rows: Rows, path: str) -> None:
        """An evaluation says itself which adapter it is of."""
        if not (md5 := self.md5(path)):
            return
        summary = self.json(f"{path}/summary.json")
        try:
            adapter, kept = summary["adapter_hash"], {key: summary[key] for key in ("split", "success", "ci95", "n")}
        except KeyError as problem:
            raise unreadable(f"{path}/summary.json", "evaluation", f"no {problem}") from None
        evaluation = rows.node(("evaluation", md5), **plain(kept))
        if adapter not in PLAYERS:
            rows.edge(("adapter", adapter), "evaluated", evaluation)
        if (self.root / path / "trajectories.parquet").exists():
            for row in self.table(f"{path}/trajectories.parquet", ["scenario_id"]):
                rows.edge(("scenario", row["scenario_id"]), "evaluated", evaluation)
        else:
            self.left_out.append(f"{path}/trajectories.parquet is missing: which scenarios it had is not known")

    def receipt(self) -> Rows:
        rows, path = Rows(), "run/receipt.json"
        if ((self.root / path).exists() or path in self.made) and (md5 := self.md5(path)):
            found = self.json(path)
            kept = {key: found.get(key) for key in ("name", "registered", "reason")}
            rows.edge(("adapter", str(found.get("adapter_hash"))), "decided", rows.node(("receipt", md5), **kept))
        return rows

    def verdict(self, path: str) -> Rows:
        """A verdict, and the evaluations that were made for it, as far as they are still the ones that it rests on."""
        found, rows = evidence(self.root / path, path), Rows()
        if not found["evaluations"]:
            self.left_out.append(f"{path}/evaluations.json is missing: what the verdict rests on is not known")
        for one in found["evaluations"].values():
            if one["path"].startswith(f"{path}/") and (self.root / one["path"]).exists():
                made = Rows()
                self.evaluation(made, one["path"])
                if ("evaluation", one["md5"]) in made.nodes:
                    rows.nodes |= made.nodes
                    rows.edges |= made.edges
        judged(rows, found)
        return rows

    def md5(self, path: str) -> str | None:
        """As DVC has it; None, and a reason, where it is missing or not what dvc.lock recorded."""
        found = self.root / path
        if not found.exists():
            self.left_out.append(f"{path} is missing")
            return None
        md5 = folder_md5(found) if found.is_dir() else file_md5(found)
        if self.made.get(path, md5) != md5:
            self.left_out.append(f"{path} is not what dvc.lock recorded (`dvc repro` or `dvc checkout` mends it)")
            return None
        return md5

    def state(self, number: str) -> str | None:
        """The adapter of a checkpoint."""
        path = f"run/{number}/checkpoint/state.json"
        return self.json(path).get("adapter") if (self.root / path).exists() else None

    def json(self, path: str) -> dict[str, Any]:
        try:
            found = json.loads((self.root / path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise unreadable(path, "JSON", str(problem)) from None
        if not isinstance(found, dict):
            raise unreadable(path, "JSON object", f"it is {type(found).__name__}")
        return found

    def table(self, path: str, columns: list[str]) -> list[dict[str, Any]]:
        """These columns alone: the turns of a batch are a hundred times as large as its ids."""
        rows: list[dict[str, Any]] = read_columns(self.root / path, columns).to_pylist()
        return rows


def evidence(folder: Path, name: str) -> dict[str, Any]:
    """What a decision rests on, as flows/promote.py writes it: {"verdict": …, "evaluations": {side: {"path", "md5"}}}."""
    from pydantic import ValidationError

    from steps.registry.gate import Verdict

    try:
        verdict = Verdict.model_validate_json((folder / "verdict.json").read_bytes())
        file = folder / "evaluations.json"
        rests_on = json.loads(file.read_text()) if file.exists() else {}
        evaluations = {side: {"path": str(one["path"]), "md5": str(one["md5"])} for side, one in rests_on.items()}
    except (ValidationError, ValueError, LookupError, TypeError, AttributeError, OSError) as problem:
        line = str(problem).strip().splitlines()[0]
        raise UserError(
            f"{name} holds no verdict ({line}); `python -m flows.promote --dry-run` makes it again"
        ) from None
    return {"hash": verdict.hash, "verdict": verdict.model_dump(mode="json"), "evaluations": evaluations}


def judged(rows: Rows, found: Mapping[str, Any]) -> None:
    """The rows of a verdict: the adapters that it judged, and the evaluations that it weighed."""
    verdict = rows.node(("verdict", found["hash"]), **plain(found["verdict"]))
    for side, shown in found["verdict"]["sides"].items():
        if shown["adapter_hash"] not in PLAYERS:
            role = "challenged" if side == "challenger" else "opposed"
            rows.edge(("adapter", shown["adapter_hash"]), role, verdict, side=side)
    for side, one in found["evaluations"].items():
        rows.edge(("evaluation", one["md5"]), "weighed", verdict, side=side)


def unreadable(path: str, what: str, reason: str) -> UserError:
    line = (reason.strip().splitlines() or [""])[0]
    return UserError(
        f"{path} holds no {what} ({line}); `dvc checkout` brings back what was recorded, `dvc repro` makes it"
    )


def trajectory(batch: str, name: str) -> Thing:
    """A trajectory's name is unique in its batch alone."""
    return ("trajectory", f"{batch[:SHORT]}/{name}")


def code_judge(name: str, entry: dict[str, Any]) -> str:
    """The identity of a judge that is code: its name, and a hash of the code, task and parameters that dvc.lock recorded."""
    given = (entry.get("params") or {}).get("params.yaml") or {}
    code = {dep["path"]: dep.get("md5") for dep in entry.get("deps", [])}
    paths = (f"steps/judging/{name}.py", f"steps/{name}.py")  # the second one in locks of before the move
    own = next((code[path] for path in paths if path in code), None)
    if own is None:
        raise UserError(
            f"dvc.lock records no code of the judge {name} ({paths[0]} under the deps of score): which {name} judged "
            "cannot be said; `dvc repro` scores again"
        )
    parts = [code.get("environments"), own, given.get("task")]
    return f"{name}-{digest([*parts, (given.get('score') or {}).get(name)])}"


def describe(root: Path, lock: Lock) -> dict[str, Any]:
    """A run: its parameters, as dvc.lock recorded them for its first iteration, and git's state."""
    names = ["scenarios", "initialise", *(f"{stage}@001" for stage in OUTPUTS)]
    given: dict[str, Any] = {}
    for name in names:
        given |= (lock[name].get("params") or {}).get("params.yaml") or {}
    state, _ = git.git_state(root)
    about = {"task": given.get("task"), "seed": given.get("seed"), "params": digest(given)}
    return about | {"git_commit": state.get("git_commit"), "git_dirty": state.get("git_dirty") == "true"}
