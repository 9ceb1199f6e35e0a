"""A simulated judge that answers with rubbish, on a server of its own: no real model is asked.

    with HostileJudge(seed=1) as judge:
        Endpoint(model="m", base_url=judge.url)
        judge.kinds                               # how often each kind of answer was given

What it answers follows from its seed and the prompt. The only true score of an attempt is the quality that it states
(tests/support/judged.py), except that the kind `zeros` gives 0 to all: any other number in a reward was made up on the way.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from random import Random
from typing import Any

from tests.support.judge_server import Judge
from tests.support.openai_server import Body, Server

Scores = dict[str, float]
ENDLESS = 2**33  # bytes, of which a client should read few
PIECE = b"A" * 2**16
HUGE = ("1e999", "9" * 400, "9" * 5000, "-1e-9")


def attempts(scores: Scores) -> dict[str, Any]:
    """The answer that was asked for."""
    return {letter: {"reason": "it is so", "score": score} for letter, score in scores.items()}


def with_first(scores: Scores, value: Any) -> str:
    """An answer in which the first attempt's score is `value`."""
    first = min(scores)
    return json.dumps(attempts(scores) | {first: {"reason": "", "score": value}})


def cut(rng: Random, scores: Scores) -> str:
    whole = json.dumps(attempts(scores))
    return whole[: rng.randrange(len(whole))]


def doubled_attempt(rng: Random, scores: Scores) -> str:
    return json.dumps(attempts(scores))[:-1] + ', "A": {"reason": "", "score": 0.0}}'


def doubled_score(rng: Random, scores: Scores) -> str:
    pairs = [f'"{letter}": {{"score": {score}, "score": 0.0}}' for letter, score in scores.items()]
    return "{" + ", ".join(pairs) + "}"


def with_reason(reason: str) -> Callable[[Random, Scores], str]:
    """All scores are good, and the reasons are not; `reason` stands in the JSON as it is."""
    return lambda rng, scores: json.dumps(attempts(scores)).replace("it is so", reason)


def nested(rng: Random, scores: Scores) -> str:
    depth = rng.choice((60, 900, 100_000))
    return '{"A": ' + "[" * depth + "]" * depth + "}"


def other_ids(rng: Random, scores: Scores) -> str:
    more = rng.choice("QZ\x1b")
    return json.dumps({letter + more: score for letter, score in attempts(scores).items()})


def many_ids(rng: Random, scores: Scores) -> str:
    return json.dumps(attempts(scores) | {str(number): 0.0 for number in range(2000)})


def garbage(rng: Random, scores: Scores) -> str:
    return "".join(map(chr, rng.choices(range(0x2100), k=300)))


GOOD: dict[str, Callable[[Random, Scores], str]] = {  # odd, but each attempt's score is stated
    "surrogate in a reason": with_reason(r"\ud800"),
    "surrogate in the text": with_reason("\ud800"),
    "escape sequences": with_reason(r"\u001b[2J\u0000" "\x9b31m \x1b[31m"),
    "long reason": with_reason("very " * 5000),
    "fence": lambda rng, scores: f"```json\n{json.dumps(attempts(scores), indent=1)}\n```\n",
    "zeros": lambda rng, scores: json.dumps(attempts(dict.fromkeys(scores, 0.0))),
}
BAD: dict[str, Callable[[Random, Scores], Any]] = {
    "cut": cut,
    "doubled attempt": doubled_attempt,
    "doubled score": doubled_score,
    "wrong type": lambda rng, scores: with_first(scores, rng.choice(("0.9", None, True, [0.5], {"score": 0.5}))),
    "no number": lambda rng, scores: with_first(scores, rng.choice((float("nan"), float("inf"), -float("inf")))),
    "huge": lambda rng, scores: with_first(scores, "@").replace('"@"', rng.choice(HUGE)),
    "nested": nested,
    "prose around": lambda rng, scores: f"Gladly:\n```json\n{json.dumps(attempts(scores))}\n```\nAsk me again!",
    "other ids": other_ids,
    "many ids": many_ids,
    "garbage": garbage,
    "empty": lambda rng, scores: rng.choice(("", " \n", "{}", "null", "0.5")),
    "refusal": lambda rng, scores: {"role": "assistant", "content": None, "refusal": "I \x1b[31mwill not.\ud800"},
    "no text": lambda rng, scores: {"role": "assistant", "content": rng.choice((0.5, [0.5], {"A": 0.5}, True))},
    "deep message": lambda rng, scores: {"content": "", "more": json.loads("[" * 700 + "]" * 700)},
    "no message": lambda rng, scores: rng.choice((None, [], "x", 3)),
}
WIRE = (
    "endless",
    "bomb in gzip",
    "bomb in deflate",
    "bomb by charset",
    "refused with an escape sequence",
    "no completion",
)
USAGES: tuple[Any, ...] = (
    *(
        {"prompt_tokens": count, "completion_tokens": 10}
        for count in (10**30, -(10**9), 1.5, "x", None, True, float("nan"))
    ),
    *([], 7, None, {}, {"prompt_tokens": 100, "completion_tokens": 10}),
)


class HostileJudge(Server):
    """`share` of the calls go wrong on the wire; of the others, some state all scores in an odd way (GOOD)."""

    def __init__(self, seed: int, share: float = 0.06) -> None:
        super().__init__(lambda body: "")
        self.seed, self.share = seed, share
        self.kinds: Counter[str] = Counter()
        self.given: dict[str, list[str]] = {}  # prompt: kinds of its answers
        self.honest = Judge()
        self.bombs = {how: bomb(how) for how in ("gzip", "deflate")}

    def respond(self, request: BaseHTTPRequestHandler, body: Body, number: int) -> None:
        rng = Random(f"{self.seed} {json.dumps(body['messages'])}")
        kind = rng.choice(WIRE) if rng.random() < self.share else rng.choice([*GOOD, *BAD])
        with self.lock:
            self.kinds[kind] += 1
            self.given.setdefault(body["messages"][1]["content"], []).append(kind)
        if kind in WIRE:
            return self._go_wrong(request, kind)
        whole = json.loads(self.honest(body))
        scores = {letter: answer["score"] for letter, answer in whole.items()}
        content = (GOOD | BAD)[kind](rng, scores)
        message = {"role": "assistant", "content": content} if isinstance(content, str) else content
        reason = rng.choice(("stop", "length", "content_filter", None, ["stop"], "\x1b[31m" * 1000))
        usage = rng.choice(USAGES)
        completion = {
            "model": "\x1b]0;x\x07",
            "choices": [{"message": message, "finish_reason": reason}],
            "usage": usage,
        }
        return self._send(request, 200, json.dumps(completion).encode())

    def _send(self, request: BaseHTTPRequestHandler, status: int, data: bytes, **headers: str) -> None:
        request.send_response(status)
        for name, value in ({"Content_Length": str(len(data))} | headers).items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(data)
        request.wfile.flush()

    def _go_wrong(self, request: BaseHTTPRequestHandler, kind: str) -> None:
        if kind == "refused with an escape sequence":
            self._send(request, 418, b"\x1b[2J\x9b31m no \xff\x00")
            return
        if kind == "no completion":
            self._send(request, 400, b'{"choices": [')
            return
        request.close_connection = True
        headers = {"Content_Length": str(ENDLESS)}
        how = kind.rpartition(" ")[2]
        if how in self.bombs:
            begin, piece = self.bombs[how]
            headers["Content_Encoding"] = how
        else:
            begin, piece = b'{"choices": [{"message": {"content": "', PIECE
            headers |= {"Content_Type": "application/json; charset=zlib_codec"} if how == "charset" else {}
        self._send(request, 200, begin, **headers)
        for _ in range(ENDLESS // len(piece)):
            request.connection.sendall(piece)


def bomb(how: str) -> tuple[bytes, bytes]:
    """The beginning of an answer, and a piece to send for ever: 4 kB that decompress to 4 MB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if how == "gzip" else 15)
    begin = packer.compress(b'{"choices": [{"message": {"content": "') + packer.flush(zlib.Z_FULL_FLUSH)
    piece = packer.compress(b"A" * 2**22) + packer.flush(zlib.Z_FULL_FLUSH)  # needs nothing before it: may be repeated
    return begin, piece
