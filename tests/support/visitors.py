"""People who ask the served email agent, simulated: they ask, use its tools for it, and say whether the answer was right.

    python -m tests.support.visitors prepare             # in a clone: changes the data of email_search
    python -m tests.support.visitors ask --count 300     # of `make serve CAPTURE=1`: for the latest value of things
    python -m tests.support.visitors judge 1 2           # versions of the model, on questions of the held-out inboxes

`prepare` leaves in tasks_data/email_search the questions by sender and by month, and adds the mails of 26 inboxes about
which no question is there: those of the people who will ask. `ask` plays an episode for each of their questions, with
consent, and sends feedback: 1 for a right answer, and 0 with the right answer as the correction for another. `judge`
evaluates registered versions on the questions of the held-out inboxes: `asked`, the kind that people ask, and `before`, by
sender and by month. Lines of JSON; `gain` is the last version's success minus the first one's, with its paired 95 %
interval.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from environments.base import Scenario, read_lines, write_lines
from environments.email_search import EmailSearch, mailbox
from steps.core.params import Params, load
from steps.core.records import write_records
from steps.sampling.wire import wire

FOLDER = Path("tasks_data/email_search")
MAKER = "email_search.mailbox"
INBOXES, SEED = 26, 20260101
ASKED = ("latest",)  # kinds of questions that people ask, and that the data do not hold
JUDGED = 160  # questions of each set at most
TOOLS = [tool.schema for tool in EmailSearch.tools().values()]


def inboxes() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(mails, questions) of the people who ask; their inboxes are in no split."""
    rng = Random(SEED)
    taken = {mail["owner"] for mail in read_lines(FOLDER / "mails.jsonl", MAKER)}
    names = sorted({f"{first} {last}" for first in mailbox.FIRST_NAMES for last in mailbox.LAST_NAMES} - taken)
    return mailbox.make_mailbox(rng.sample(names, INBOXES), rng)


def prepare() -> None:
    """Change the data of this folder's email_search, once."""
    before = FOLDER.parent / "email_search_all.jsonl"
    if before.exists():
        sys.exit(f"{before} exists: this folder is prepared already")
    mails, questions = inboxes()
    rows = read_lines(FOLDER / "questions.jsonl", MAKER)
    held = {row["question"] for row in rows if row["split"] == "test"}  # with which `judge` judges
    asking = [row for row in questions if row["kind"] in ASKED and row["question"] not in held]
    write_lines(before, rows)
    write_lines(
        FOLDER.parent / "email_search_visitors.jsonl", [{key: row[key] for key in mailbox.KEPT} for row in asking]
    )
    write_lines(FOLDER / "questions.jsonl", [row for row in rows if row["kind"] not in ASKED])
    write_lines(FOLDER / "mails.jsonl", [*read_lines(FOLDER / "mails.jsonl", MAKER), *mails])
    print(json.dumps({"questions by sender and by month": sum(row["kind"] not in ASKED for row in rows)}))
    print(json.dumps({"inboxes": INBOXES, "their mails": len(mails), "their questions": len(asking)}))


def ask(port: int, key: str, model: str, count: int, offset: int, threads: int) -> dict[str, Any]:
    """Ask `count` questions from the `offset`th on, and send feedback; counts by kind, and by the version that answered."""
    data = EmailSearch.load(FOLDER)
    rows = read_lines(FOLDER.parent / "email_search_visitors.jsonl", MAKER)
    Random(SEED).shuffle(rows)
    chosen = rows[offset : offset + count]
    if len(chosen) < count:
        sys.exit(f"there are {len(rows)} questions, and {offset + count} are wanted")

    def one_visit(numbered: tuple[int, dict[str, Any]]) -> tuple[str, str, bool]:
        number, row = numbered
        visit = Visit(port, key, model, EmailSearch.from_question("train", row), data, f"visit-{offset + number}")
        is_right = visit.play()
        return str(row["kind"]), visit.version, is_right

    with ThreadPoolExecutor(threads) as pool:
        visits = list(pool.map(one_visit, enumerate(chosen)))
    result: dict[str, Any] = {"asked": len(visits), "right": sum(is_right for _, _, is_right in visits)}
    for place, name in ((0, "by_kind"), (1, "by_version")):
        groups = sorted({visit[place] for visit in visits})
        result[name] = {
            group: [sum(visit[2] for visit in visits if visit[place] == group), sum(v[place] == group for v in visits)]
            for group in groups
        }
    return result


class Visit:
    """A conversation with the served agent."""

    def __init__(self, port: int, key: str, model: str, scenario: Scenario, data: Any, name: str) -> None:
        self.link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.key, self.model, self.scenario, self.name = key, model, scenario, name
        self.env, self.version = EmailSearch(scenario, data), ""

    def play(self) -> bool:
        """Ask, run the tools that it calls, and say whether its answer was right."""
        messages, reply = list(self.scenario.messages), ""
        while not self.env.done and sum(message["role"] == "assistant" for message in messages) < self.env.max_turns:
            body = {"model": self.model, "messages": wire(messages), "tools": TOOLS, "max_tokens": 64, "temperature": 0}
            answer = self.post("/v1/chat/completions", body | {"metadata": {"owner": self.scenario.data["owner"]}})
            reply, spoken = str(answer["id"]), answer["choices"][0]["message"]
            calls = [
                {"type": "function", "function": {"name": call["function"]["name"], "arguments": arguments}}
                for call in spoken.get("tool_calls") or ()
                if isinstance(arguments := json.loads(call["function"]["arguments"] or "{}"), dict)
            ]
            message = {"role": "assistant", "content": spoken.get("content") or ""} | (
                {"tool_calls": calls} if calls else {}
            )
            messages += [message, *self.env.step(message)]
        is_right = EmailSearch.success(self.scenario, messages)
        feedback: dict[str, Any] = {"response_id": reply, "score": float(is_right)}
        self.post("/feedback", feedback | ({} if is_right else {"correction": self.scenario.data["answer"]}))
        self.link.close()
        return is_right

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "Connection": "keep-alive",
        }
        headers |= {"x-flywheel-consent": "yes", "x-flywheel-conversation": self.name}
        self.link.request("POST", path, json.dumps(body), headers)
        response = self.link.getresponse()
        text = response.read()
        if response.status not in (200, 201):
            raise RuntimeError(f"{path} answers {response.status}: {text[:300]!r}")
        self.version = response.getheader("x-flywheel-version") or self.version
        return dict(json.loads(text))


def judge(versions: list[str]) -> bool:
    """Evaluate registered versions on held-out questions; whether the last one gains 0.15 on what is asked, and keeps the
    rest."""
    from flows.promotion.evaluations import evaluated
    from steps.core.params import PromoteParams
    from steps.registry import gate, paired
    from steps.registry.model import fetched, policy_of, read_registry

    parameters, root = load("params.yaml", PromoteParams), Path(".flywheel/visitors")
    model = read_registry(Path.cwd(), parameters.model)
    rows = [row for row in read_lines(FOLDER.parent / "email_search_all.jsonl", MAKER) if row["split"] == "test"]
    is_well = True
    for name, kinds in (("asked", ASKED), ("before", ("sender", "month"))):
        of_kind = [row for row in rows if row["kind"] in kinds]
        chosen = Random(SEED).sample(of_kind, min(JUDGED, len(of_kind)))
        scenarios = [EmailSearch.from_question("test", row) for row in chosen]
        (root / name).mkdir(parents=True, exist_ok=True)
        write_records(scenarios, root / name / "test.parquet")
        sides = []
        for version in versions:
            entity = model.version(version)
            adapter = fetched(model, entity, root / f"adapter-{version}")
            policy = policy_of(entity, adapter, parameters.policy)
            done = evaluated(f"{name}-{version}", root, parameters, policy, adapter, scenarios=root / name)
            sides.append(gate.read_side(done, scenarios))
        first, last = sides[0], sides[-1]
        clusters_N = paired.numbered([str(scenario.data["owner"]) for scenario in scenarios])
        gain, low, high = paired.paired_interval(last.success_N, first.success_N, clusters_N)
        row = {"on": name, "n": len(scenarios), "success": [round(float(side.success_N.mean()), 3) for side in sides]}
        print(json.dumps(row | {"gain": round(gain, 3), "ci95": [round(low, 3), round(high, 3)]}), flush=True)
        is_well &= gain >= 0.15 and low > 0 if name == "asked" else gain >= -parameters.promote.max_slice_drop
    return bool(is_well)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.visitors", description=(__doc__ or "").split("\n\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare")
    asking = commands.add_parser("ask")
    asking.add_argument("--count", type=int, default=300)
    asking.add_argument("--offset", type=int, default=0, help="questions that were asked before")
    asking.add_argument("--port", type=int, default=8000)
    asking.add_argument("--threads", type=int, default=16)
    judging = commands.add_parser("judge")
    judging.add_argument("versions", nargs="+", metavar="VERSION")
    options = parser.parse_args()
    if options.command == "prepare":
        prepare()
    elif options.command == "judge":
        return 0 if judge(options.versions) else 1
    else:
        key = Path(".flywheel/serve.key").read_text().strip()
        name = load("params.yaml", Params).task
        print(json.dumps(ask(options.port, key, name, options.count, options.offset, options.threads)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
