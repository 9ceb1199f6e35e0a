"""How fast conversations are captured and ingested: one line of JSON.

    python -m tests.support.traces_speed                    # 5,000 conversations of email_search, 2 to 6 turns each
    python -m tests.support.traces_speed --count 500

`capture_ms`: median milliseconds that storing one answer takes, masking and the disk included, which is what a client
waits for at its answer's end. `ingest_seconds`: of all conversations, from the store to the written data sets;
`again_seconds`: of a second ingestion, which finds nothing new and makes all data sets anew. `mb`: MiB in the store.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from addons.production.serving import capture
from addons.production.traces.records import key_of
from addons.production.traces.sources import Source, ingest, load_task
from steps.core import params
from steps.sampling.wire import wire
from tests.support.golden_traces import tools, turns

PLAYERS = ("gold", "scripted", "bad", "random")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=5000)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measured(count, Path(folder))))


def measured(count: int, folder: Path) -> dict[str, Any]:
    names = (capture.FOLDER, capture.RATE, capture.DAYS, capture.BYTES, capture.CONSENT)
    values = (folder / "capture", 1, 30, 2**34, "given")
    os.environ |= {name: str(value) for name, value in zip(names, values, strict=True)}
    keeper = capture.Keeper()
    task, rng, seconds = load_task(Path(), params.Params()), Random(1), list[float]()
    env: Any = task.env
    known = [env.from_question("train", row) for row in task.data.questions["train"]]
    for number in range(count):
        scenario, player = rng.choice(known), rng.choice(PLAYERS)
        messages: list[Any] = wire(task.env(scenario, task.data).play(player, number))
        for asked in turns(messages):
            answer = {"id": f"chatcmpl-{number}-{len(asked)}", "message": messages[len(asked)]}
            request = {"messages": asked, "tools": tools(), "metadata": {"owner": scenario.data["owner"]}}
            begun = time.perf_counter()
            keeper.keep(key_of("capture", str(number)), request, [answer])
            seconds.append(time.perf_counter() - begun)
        fields = {"response_id": answer["id"], "score": float(player in ("gold", "scripted"))}  # pyrefly: ignore[unbound-name]
        fields |= {} if fields["score"] else {"correction": scenario.data["answer"]}
        status, told = keeper.take(json.dumps(fields).encode())
        assert status == 201, told
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        done = ingest(folder, folder / "out", [Source("capture", str(folder / "capture"))], task, {}, False, 0.3)
        times.append(round(time.perf_counter() - begun, 2))
    sets = {
        name: len(getattr(done.sets, name)) for name in ("scenarios", "demonstrations", "preferences", "regression")
    }
    size = sum(path.stat().st_size for path in keeper.store.segments()) / 2**20
    row = {"conversations": done.conversations, "calls": len(seconds), "mb": round(size, 1)}
    row |= {"capture_ms": round(1000 * statistics.median(seconds), 2), "ingest_seconds": times[0]}
    return row | {"again_seconds": times[1], **sets, "quarantined": len(done.sets.quarantine)}


if __name__ == "__main__":
    main()
