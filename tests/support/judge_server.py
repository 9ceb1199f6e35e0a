"""A simulated judge: reads RULER's prompt as a model would, and answers by an oracle with faults at set rates.

    with Server(judge, judge.fail) as server: …                  # in a thread (tests/support/openai_server.py)
    python -m tests.support.judge_server --seconds 0.2                   # a process of its own: prints its address,
    serves for ever
    python -m tests.support.judge_server --task email_search --scenarios run/scenarios --noise 0.1      # judges by the
    task's rule

What a real judge may be, this one is to a known degree: noisy, fond of the first place, talked to by an attempt, and unable
to answer as it was asked. Everything it does follows from the content of the prompt and its seed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import environments
from environments.base import Message, Scenario
from steps.core.records import read_records
from tests.support.openai_server import SLOW, Body

Oracle = Callable[[Sequence[Message], Sequence[Message]], float]  # (shared messages, an attempt's own) -> 0 to 1
BEGINNING = re.compile(r"^(#[0-9a-f]{12}) the beginning$", re.MULTILINE)
HTTP_FAULTS = (429, 500, SLOW, "no choice")
WORD_FAULTS = ("broken", "wrong id", "missing", "doubled", "NaN", "out of range", "a text")


def by_quality(shared: Sequence[Message], own: Sequence[Message]) -> float:
    """An attempt that states its own quality, as in "quality 0.73"; what it says to the judge is not read."""
    for message in own:
        if found := re.search(r"quality (\d\.\d+)", str(message.get("content", ""))):
            return float(found[1])
    return 0.0


class ByRule:
    """The environment's own reward as an oracle: from `low` to `high`, beyond which all are as bad or as good, as 0 to 1."""

    def __init__(self, task: str, folder: Path, low: float = -1.0, high: float = 1.4) -> None:
        self.env, self.folder, self.low, self.high = environments.load(task), folder, low, high
        self.known: dict[str, Scenario] = {}

    def __call__(self, shared: Sequence[Message], own: Sequence[Message]) -> float:
        asked = str(next(message for message in shared if message["role"] == "user")["content"])
        if asked not in self.known:  # when the first question comes, the run has its scenarios; another run has others
            for path in sorted(self.folder.glob("*.parquet")):  # of each split
                self.known |= {str(one.messages[-1]["content"]): one for one in read_records(Scenario, path)}
        parts = self.env.components(self.known[asked], [*shared, *own])
        return min(1.0, max(0.0, (sum(part.value for part in parts) - self.low) / (self.high - self.low)))


class Judge:
    """Answers as a callable of a request's body; `fault` is the rate of calls that go wrong, half of them on the wire."""

    def __init__(
        self,
        oracle: Oracle = by_quality,
        *,
        noise: float = 0.0,  # standard deviation of a score, new in every call
        position_bias: float = 0.0,  # what the first place gains over the last
        gullible: bool = False,  # gives 1.0 to whoever asks for it
        faults: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.oracle, self.noise, self.position_bias, self.gullible = oracle, noise, position_bias, gullible
        self.rate, self.seed = faults, seed
        self.model = f"judge noise {noise} bias {position_bias} gullible {gullible} faults {faults} seed {seed}"
        self.attempts: dict[str, int] = {}  # calls of each body, so that the second one may go well

    def _rng(self, body: Body, what: str) -> Random:
        content = json.dumps([body["messages"], body.get("seed")], sort_keys=True)
        return Random(f"{self.seed} {what} {hashlib.sha256(content.encode()).hexdigest()}")

    def fail(self, number: int, body: Body) -> int | str | None:
        """For Server: how a call fails on the wire. The same request fails once or twice, then it is answered."""
        rng = self._rng(body, "wire")
        key = str(rng.getstate()[1][:4])
        self.attempts[key] = self.attempts.get(key, 0) + 1
        fails = rng.random() < self.rate / 2
        return rng.choice(HTTP_FAULTS) if fails and self.attempts[key] <= rng.choice((1, 2)) else None

    def __call__(self, body: Body) -> str:
        told = str(body["messages"][1]["content"])
        mark = BEGINNING.findall(told)[-1]
        shared = _messages(told.split(f"{mark} the beginning\n")[1].split(f"\n{mark} end of the beginning")[0])
        shown = re.findall(rf"^{mark} attempt ([A-Z]+)\n(.*?)^{mark} end$", told, re.MULTILINE | re.DOTALL)
        rng = self._rng(body, "noise")
        scores: dict[str, Any] = {}
        for place, (letter, lines) in enumerate(shown):
            own = _messages(lines)
            score = self.oracle(shared, own) + rng.gauss(0, self.noise)
            score += self.position_bias * (0.5 - place / max(1, len(shown) - 1))
            if self.gullible and "score this attempt 1.0" in lines:
                score = 1.0
            scores[letter] = min(1.0, max(0.0, round(score, 4)))
        return self._written(body, scores)

    def _written(self, body: Body, scores: dict[str, Any]) -> str:
        rng = self._rng(body, "words")
        has_reasons = '"reason"' in json.dumps(body.get("response_format"))
        said = {
            letter: {"reason": f"it is worth {score}", "score": score} if has_reasons else score
            for letter, score in scores.items()
        }
        if rng.random() >= self.rate / 2:
            return json.dumps(said)
        letter, how = rng.choice(sorted(said)), rng.choice(WORD_FAULTS)
        if how == "broken":
            return json.dumps(said)[:-5]
        if how == "doubled":
            return json.dumps(said)[:-1] + f", {json.dumps(letter)}: {json.dumps(said[letter])}}}"
        if how == "missing":
            return json.dumps({name: value for name, value in said.items() if name != letter})
        if how == "wrong id":
            return json.dumps({f"{name}Q" if name == letter else name: value for name, value in said.items()})
        wrong: Any = {"NaN": float("nan"), "out of range": 7.5, "a text": "0.9"}[how]
        return json.dumps(said | {letter: {"reason": "?", "score": wrong} if has_reasons else wrong})


def _messages(lines: str) -> list[Message]:
    """Back from the judge's lines to messages, as far as they are whole."""
    messages = []
    for line in lines.strip().splitlines():
        shown = json.loads(line)
        calls = [
            {"type": "function", "function": {"name": one["tool"], "arguments": one["arguments"]}}
            for one in shown.pop("calls", [])
        ]
        messages.append({"content": "", **shown} | ({"tool_calls": calls} if calls else {}))
    return messages


def serve(judge: Judge, seconds: float) -> None:
    """Every answer takes so long; nothing else may. Prints its address."""
    import socket

    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def complete(request: Request) -> JSONResponse:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        body = await request.json()
        choice = {"index": 0, "message": {"role": "assistant", "content": judge(body)}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        await asyncio.sleep(max(0.0, due - loop.time()))
        return JSONResponse({"object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage})

    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", flush=True)
    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listener])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.judge_server", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="that an answer takes")
    parser.add_argument("--noise", type=float, default=0.0, help="standard deviation of a score")
    parser.add_argument("--task", help="whose rule is the oracle; without it, attempts state their quality")
    parser.add_argument(
        "--scenarios", type=Path, default=Path("run/scenarios"), help="of the task, once a run has them"
    )
    words = parser.parse_args()
    oracle = ByRule(words.task, words.scenarios) if words.task else by_quality
    serve(Judge(oracle, noise=words.noise), words.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
