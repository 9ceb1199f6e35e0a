"""What does masking find, what does it leave, and what does it cost? Planted secrets, clean texts, and serving with capture.

    python -m benchmarks.masking            # 336 planted kinds, 2,000 clean texts, 50 clients with prompts of 1 to 200 KB
    python -m benchmarks.masking --quick    # each kind once, 400 clean texts, 4 seconds of each load
    python -m benchmarks.masking --loads    # the loads alone
    python -m benchmarks.masking --misses   # also every kind that is missed in some place, and every clean text that changes

Rows `first` and `second`: the share of planted secrets (tests/support/planted.py) of which nothing is left, in running
text and, as `places`, in arguments, keys, ids, names, JSON and paths. The second kinds were written after masking was tuned
to the first: 0.817 of them were found at first sight, and masking was tuned to them afterwards. Row `clean`: the share of
clean texts (tests/support/clean.py) that change, over the 0.02 that are allowed, and the milliseconds of 20 KB. Rows
`serving`: calls per second with capture over those without, and CPU milliseconds of the server's processes for a call,
before an engine that answers after 0.15 s, of prompts that are all different, and of those that go on where the last one
ended. Rows `load`: 50 clients for a minute before an engine that answers after a second, different prompts, every second
answer a stream, and for the middle third no file of the server's processes can grow, as on a full disk. The 95th percentile
of the milliseconds until an answer is whole, with capture over without; the same while the disk is full; answers that were
lost, cut or not 200, which must be none; and what was stored, what was counted, and what was neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from addons.production.serving.counts import LATE
from benchmarks import _common
from benchmarks._common import tell
from benchmarks._masking_server import ANSWER

CLIENTS, PROMPT, ANSWERS = 50, 20_000, 0.15  # clients, characters of a prompt, seconds until an answer


def recall(which: str, seeds: int, misses: bool) -> dict[str, Any]:
    """The row of the planted kinds of one file."""
    from addons.production.traces.privacy import Privacy
    from tests.support.planted import kinds, leaks, planted

    privacy = Privacy()
    places: dict[str, Callable[[str], object]] = {
        "text": privacy.text,
        "prose": lambda text: privacy.text(f"Good morning,\n{text}\nThanks a lot."),
        "argument": lambda text: privacy.value({"a": [{"note": text}]}),
        "key": lambda text: privacy.value({text: 1}),
        "id": privacy.id,
        "name": privacy.name,
        "json": lambda text: privacy.text(json.dumps({"result": json.dumps([text])})),
        "path": lambda text: privacy.text(f"/srv/data/{text}/part.txt"),
    }
    listed = kinds(which)
    counts, groups = dict.fromkeys(places, 0), dict[str, list[int]]()
    for kind in listed:
        for seed in range(seeds):
            row = planted(kind, seed)
            for place, mask in places.items():
                masked = mask(row.text)
                shown = masked if isinstance(masked, str) else json.dumps(masked, ensure_ascii=False)
                is_found = not leaks(row, shown)
                counts[place] += is_found
                if place == "text":
                    groups.setdefault(row.group, []).append(is_found)
                if misses and not is_found and seed == 0:
                    tell(f"missed in {place}: {row.group}, {row.name}")
    shares = {place: round(count / len(listed) / seeds, 4) for place, count in counts.items()}
    by_group = {group: round(sum(hits) / len(hits), 3) for group, hits in groups.items()}
    mean = round(sum(shares.values()) / len(shares), 4)
    return {
        "name": which,
        "ratio": shares["text"],
        "kinds": len(listed),
        "places": mean,
        **by_group,
        "by_place": shares,
    }


def clean(count: int, misses: bool) -> dict[str, Any]:
    """The row of clean texts."""
    from addons.production.traces.privacy import Privacy
    from tests.support.clean import made

    texts, privacy = made(count), Privacy()
    began = time.process_time()
    changed = [(group, text) for group, text in texts if privacy.text(text) != text]
    seconds = time.process_time() - began
    for group, text in changed if misses else ():
        tell(f"changed: {group}, {text[:200]!r}")
    groups = {name: sum(group == name for group, _ in changed) for name in dict.fromkeys(group for group, _ in texts)}
    share = len(changed) / len(texts)
    spent = 1000 * seconds * PROMPT / sum(len(text) for _, text in texts)
    row = {"name": "clean", "ratio": round(share / 0.02, 4), "texts": len(texts), "false_alarms": share}
    return {**row, "ms_per_20_kb": round(spent, 2), **groups}


def serving(kind: str, seconds: float) -> dict[str, Any]:
    """The row of serving: prompts that are `different`, or that are `continued`."""
    (without, cpu_without), (kept, cpu_kept) = (_rate(kind, seconds, is_captured) for is_captured in (False, True))
    row = {"name": f"serving, {kind}", "ratio": round(kept / without, 3), "without": round(without, 1)}
    milliseconds = {"cpu_ms_without": round(1e3 * cpu_without, 2), "cpu_ms_with": round(1e3 * cpu_kept, 2)}
    return row | {"with": round(kept, 1)} | milliseconds


def _spent(process: int) -> float:
    """CPU seconds of a process and those that it has started."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") + sum(map(_spent, _children(process)))


def _children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(name) for task in tasks for name in (task / "children").read_text().split()]


def _rate(kind: str, seconds: float, is_captured: bool) -> tuple[float, float]:
    """Calls per second, and the CPU seconds of the server's processes for each."""
    with _server(ANSWERS, is_captured) as server:
        began, spent = time.monotonic(), _spent(server.process.pid)
        rate = len(asyncio.run(_load(server.port, kind, PROMPT, seconds))) / (time.monotonic() - began)
        cpu = (_spent(server.process.pid) - spent) / (rate * (time.monotonic() - began))
        if is_captured and not any(server.store.glob("*.jsonl")):
            raise SystemExit("nothing was captured")
    return rate, cpu


def load(size: int, seconds: float) -> dict[str, Any]:
    """The row of a load of prompts of so many characters, with a full disk in its middle third."""
    with _server(1.0, False) as server:
        without = asyncio.run(_load(server.port, "different", size, seconds / 3))
    with _server(1.0, True) as server:
        started = time.monotonic()
        with _full_disk(server.process.pid, seconds / 3, 2 * seconds / 3):
            calls = asyncio.run(_load(server.port, "different", size, seconds))
        counts = server.counts()
        stored = sum(path.read_bytes().count(b'{"kind": "call"') for path in server.store.glob("*.jsonl"))
    full = [call for call in calls if seconds / 3 <= call.at - started < 2 * seconds / 3]
    median, late, shown = (
        {},
        {},
        {"without": without, "with": [call for call in calls if call not in full], "full": full},
    )
    for name, some in shown.items():
        times = sorted(1e3 * call.seconds for call in some)
        median[f"median_ms_{name}"] = round(statistics.median(times), 1)
        late[f"p95_ms_{name}"] = round(times[int(0.95 * len(times))], 1)
    row = {"name": f"load, {size // 1000} KB", "ratio": round(late["p95_ms_with"] / late["p95_ms_without"], 3)}
    row |= {"answers": len(calls), "lost": sum(not call.is_whole for call in calls)}
    missing = server.warm + len(calls) - stored - sum(count for why, count in counts.items() if why != LATE)
    return row | median | late | {"stored": stored, "counted": counts, "uncounted": missing}


class Call(NamedTuple):
    """A call of a client: the moment of its end (of time.monotonic), its seconds, and whether its answer was whole."""

    at: float
    seconds: float
    is_whole: bool


class _Server(NamedTuple):
    process: subprocess.Popen[bytes]
    port: int
    store: Path
    warm: int  # calls that it has answered before

    def counts(self) -> dict[str, int]:
        """What capture has counted, when nothing waits any more."""
        while True:
            answer = json.loads(asyncio.run(_asked(self.port, "GET /capture", b"")))
            if not answer["waiting_seconds"]:
                return dict(answer["not_stored"])
            time.sleep(0.2)


@contextlib.contextmanager
def _server(seconds: float, is_captured: bool) -> Iterator[_Server]:
    """A server whose engine answers after so many seconds, and which is warm."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="masking-") as folder:
        settings = {"FOLDER": f"{folder}/store", "RATE": "1", "DAYS": "30", "BYTES": str(2**33), "CONSENT": "header"}
        variables = {f"FLYWHEEL_CAPTURE_{name}": value for name, value in settings.items()}
        variables |= {"VLLM_API_KEY": "k", "FLYWHEEL_SWAP_TOKEN": "s"}
        words = [sys.executable, "-m", "benchmarks._masking_server", str(port), str(seconds), str(int(is_captured))]
        server = subprocess.Popen(words, cwd=_common.ROOT, env=os.environ | variables)
        try:
            while True:
                with socket.socket() as asked:
                    if asked.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            warm = asyncio.run(_load(port, "different", 1000, 2 + seconds))  # processes start, and pages are warm
            yield _Server(server, port, Path(folder, "store"), len(warm))
        finally:
            server.terminate()
            server.wait()


@contextlib.contextmanager
def _full_disk(process: int, after: float, until: float) -> Iterator[None]:
    """For this time from now on (seconds), files of a process and of its children do not grow."""
    limits = "import resource as r, sys, time; after, until, *all = map(float, sys.argv[1:]); time.sleep(after); "
    limits += "[r.prlimit(int(p), r.RLIMIT_FSIZE, (0, -1)) for p in all]; time.sleep(until - after); "
    limits += "[r.prlimit(int(p), r.RLIMIT_FSIZE, (-1, -1)) for p in all]"
    words = [sys.executable, "-c", limits, *map(str, (after, until, process, *_children(process)))]
    limiter = subprocess.Popen(words)
    try:
        yield
    finally:
        limiter.terminate()
        limiter.wait()


async def _asked(port: int, line: str, body: bytes) -> bytes:
    """The body of an answer of the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{line} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer k\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n\r\n")[2]


async def _load(port: int, kind: str, size: int, seconds: float) -> list[Call]:
    """The calls of all clients. About half of the answers to different prompts are streams."""
    words = [word for path in sorted((_common.ROOT / "docs").glob("*.md")) for word in path.read_text().split()]
    words = [word for word in words if word.isalpha()]
    book = " ".join(random.Random(0).choices(words, k=400_000))  # of which each prompt is a piece
    stop, calls = time.monotonic() + seconds, list[Call]()

    async def client(number: int) -> None:
        rng = random.Random(number)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        start = rng.randrange(len(book) - size)
        turns = [{"role": "user", "content": book[start : start + size]}]
        is_stream = False
        while time.monotonic() < stop:
            if kind == "different":
                start = rng.randrange(len(book) - size)
                turns = [{"role": "user", "content": book[start : start + size]}]
                is_stream = rng.random() < 0.5
            body = json.dumps({"model": "m", "messages": turns, "stream": is_stream}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer k\r\n"
            head += "x-flywheel-consent: yes\r\ncontent-type: application/json\r\n"
            began = time.monotonic()
            try:
                writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                answer = await asyncio.wait_for(_answer(reader), 120)
            except (OSError, EOFError):
                answer = b""
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            is_whole = ANSWER.encode() in answer and (not is_stream or b"data: [DONE]" in answer)
            calls.append(Call(time.monotonic(), time.monotonic() - began, is_whole and b" 200 OK" in answer[:20]))
            turns = [*turns, {"role": "user", "content": " ".join(rng.choices(words, k=10))}][-20:]
        writer.close()

    await asyncio.gather(*map(client, range(CLIENTS)))
    return calls


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """A whole answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    body = b""
    if b"content-length: " in head:
        body = await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
    else:
        while not body.endswith(b"0\r\n\r\n"):
            body += await reader.readuntil(b"\r\n")
    return head.upper() + body


def main() -> None:
    parser = _common.parser("masking", __doc__, "each kind once, 400 clean texts, 4 seconds of each load")
    parser.add_argument(
        "--misses", action="store_true", help="name every kind that is missed, and every clean text that changes"
    )
    parser.add_argument("--loads", action="store_true", help="measure the loads alone")
    options = parser.parse_args()
    rows = _common.begin("masking", options)
    for which in () if options.loads else ("first", "second"):
        rows.add(recall(which, 1 if options.quick else 5, options.misses))
    if not options.loads:
        rows.add(clean(400 if options.quick else 2000, options.misses))
    for kind in () if options.loads else ("different", "continued"):
        rows.add(serving(kind, 4 if options.quick else 12))
    for size in (1000, 20_000, 200_000):
        rows.add(load(size, 6 if options.quick else 60))


if __name__ == "__main__":
    _common.command(main)
