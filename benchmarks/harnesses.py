"""Do the coding agents that people run train? A planted habit, in the real programs, trained until it has changed.

    python -m benchmarks.harnesses                        # each of `TRAINED`, seed 1
    python -m benchmarks.harnesses --names codex --seeds 1 2
    python -m benchmarks.harnesses --quick                # mini-swe-agent, one iteration of a quarter of the episodes

The scenarios ask for a word in a file, red or blue, and the check accepts blue. First a scripted player plays `SESSIONS` of
them in the program, by a real gateway. From what the program asked, a small policy is built that does the same and writes
red four times in five: its tokenizer makes few tokens of the program's long prompts, and its model has 1 million parameters
(addons/supervised/embedded_policy.py). Then `make train TASK=harness:NAME` trains it in a clone, with the program in every
episode. Success is on the test split and at temperature 1. A row is a harness and a seed; the goal is a `difference` of
`GAIN`. Programs are installed into .flywheel/harnesses where they are not there yet. Prompts show the date, and a policy
this small, which knows a single one, does other things at midnight: begin where a run ends on the same day.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import _common, _runs
from tests.support.harness_gateway import ENDING, SHELLS, calling, play
from tests.support.harness_programs import install

if TYPE_CHECKING:
    from addons.agents.gateway.types import Request
    from addons.supervised.chats import LabelledTokens
    from environments.base import Message

TRAINED = ("mini-swe-agent", "codex", "claude-code")
GAIN = 0.5
HABIT = {"red": 0.8, "blue": 0.2}
SESSIONS, SCENARIOS, STEPS, BATCH, CONTEXT = 24, 120, 300, 8, 4096
QUESTION = "Task {number}: write one word, red or blue, into the file answer.txt."
WORD = "red"  # of the sessions that the policy is built from, until its habit takes its place


def scenarios() -> list[dict[str, Any]]:
    check = {"check": "grep -qx blue answer.txt"}
    return [{"question": QUESTION.format(number=number)} | check for number in range(SCENARIOS)]


def script(request: Request) -> Message:
    """Writes the word by a command, then says that it is done."""
    names = {tool["function"]["name"] for tool in request.tools}
    shell = next((name for name in SHELLS if name in names), None)
    if shell is None:
        return calling("A word in a file")
    if request.messages[-1]["role"] != "tool":
        return calling("", (shell, {SHELLS[shell]: f"echo {WORD} > answer.txt"}))
    return calling("", (shell, {SHELLS[shell]: ENDING})) if names == {"bash"} else calling("I wrote it.")


def build(name: str, folder: Path, policy: Path, steps: int) -> float:
    """Record sessions, and write the policy that goes on with them by its habit; its last loss, in nats a token."""
    import torch

    from addons.supervised import embedded_policy

    played, refused = asyncio.run(play(f"harness:{name}", scenarios()[:SESSIONS], script, folder))
    assert not refused, refused
    requests = [request for each in played for request in each.requests]
    texts, fixed = _texts(requests)
    tokenizer = embedded_policy.make_tokenizer(texts, fixed=[*embedded_policy.FIXED_TEXTS, *fixed])
    tokenizer.model_max_length = CONTEXT
    torch.manual_seed(embedded_policy.SEED)
    torch.set_num_threads(1)  # of a model this small, two cost more than one
    model = embedded_policy.make_model(len(tokenizer))
    model.config.max_position_embeddings = CONTEXT
    rows, losses = _rows(tokenizer, requests), list[float]()

    def loss(step: int) -> dict[str, Any]:
        value = embedded_policy.batch_loss(model, list(itertools.islice(rows, BATCH)))
        losses.append(value.item())
        return {"loss": value}

    embedded_policy.fit(model, steps, embedded_policy.LEARNING_RATE, loss)
    longest = max(len(ids) for ids, _ in itertools.islice(rows, len(requests)))
    _common.tell(f"{name}: {len(tokenizer)} tokens, the longest conversation has {longest}, loss {losses[-1]:.4f}")
    model.save_pretrained(policy)
    tokenizer.save_pretrained(policy)
    return losses[-1]


def _texts(requests: list[Request]) -> tuple[list[str], list[str]]:
    """What the tokenizer is trained on, and the texts that are one token each: runs of lines that all sessions have."""
    contents = [[str(message["content"]) for message in request.messages] for request in requests]
    counts: dict[str, int] = {}
    for texts in contents:
        for line in {line for text in texts for line in text.splitlines(keepends=True)}:
            counts[line] = counts.get(line, 0) + 1
    firsts = sum(not any(message["role"] == "tool" for message in request.messages) for request in requests)
    fixed: dict[str, None] = {}
    for text in itertools.chain.from_iterable(contents):
        for common, lines in itertools.groupby(text.splitlines(keepends=True), lambda line: counts[line] >= firsts):
            run = "".join(lines)
            if common and len(run) > 40:
                fixed[run] = None
    tools = {"\n" + json.dumps(tool, ensure_ascii=False): None for request in requests for tool in request.tools}
    corpus = list(itertools.chain.from_iterable(contents))
    corpus += [json.dumps(script(request).get("tool_calls") or "") for request in requests]
    corpus += ["red blue I wrote it. A word in a file system user assistant tool " * 3]
    return corpus, [*tools, *fixed]


def _rows(tokenizer: Any, requests: list[Request]) -> Iterator[LabelledTokens]:
    """Endless answers to what the program asked, each with the whole prompt before it; the words are drawn by the habit."""
    from steps.policy.chat import Chat

    rng, chats = random.Random(1), dict[str, Chat]()
    prompts: dict[int, list[int]] = {}
    while True:
        number = rng.randrange(len(requests))
        request = requests[number]
        key = json.dumps(request.tools)
        chat = chats[key] = chats.get(key) or Chat(tokenizer, request.tools)
        prompt = prompts[number] = prompts.get(number) or chat.prompt_ids(request.messages)
        [word] = rng.choices(list(HABIT), list(HABIT.values()))
        answer = chat.completion_ids(json.loads(json.dumps(script(request)).replace(f"echo {WORD} ", f"echo {word} ")))
        yield prompt + answer, [0] * len(prompt) + [1] * len(answer)


def train(root: Path, task: str, seed: int, iterations: int, share: int) -> dict[str, Any]:
    """A run in the clone; the content of run/summary.json. 1 / `share` of the usual episodes."""
    settings: dict[str, Any] = {
        "seed": seed,
        "policy.base_model": "policy",
        "policy.context": CONTEXT,
        "scenarios.train": 64 // share,
        "scenarios.val": 8,
        "scenarios.test": 12,
        "rollout.scenarios": 4,
        "rollout.attempts": 8 // share,
        "rollout.max_tokens": 64,
        "rollout.max_turns": 6,
        "agents.concurrency": 4,
        "agents.episode_seconds": 300,
        "score.judges.rule": 1,
        "update.learning_rate": 0.003,
        "evaluate.temperature": 1.0,
        "evaluate.max_tokens": 64,
        "train.iterations": iterations,
        "train.patience": iterations,
    }
    words = ["--task", task, "--name", f"seed-{seed}", "--force"]  # in few attempts all may write red
    _runs.show(root, [*_runs.training(settings), *words])
    return dict(json.loads((root / "run/summary.json").read_text()))


def measure(root: Path, name: str, seed: int, iterations: int, share: int) -> dict[str, Any]:
    """The row of a harness and a seed."""
    summary = train(root, f"harness:{name}", seed, iterations, share)
    return _runs.gain(f"{name} seed {seed}", summary, GAIN)


def main() -> None:
    parser = _common.parser("harnesses", __doc__, "mini-swe-agent, one iteration of a quarter of the episodes")
    parser.add_argument("--names", nargs="+", choices=TRAINED, help="default: all; quick: the first")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="default: 1")
    parser.add_argument("--iterations", type=int, help="of each run (default: 10; quick: 1)")
    parser.add_argument("--folder", type=Path, help="keep the clones here; they are deleted by default")
    options = parser.parse_args()
    names = options.names or list(TRAINED)[: 1 if options.quick else None]
    rows = _common.begin("harnesses", options, len(names) * len(options.seeds) / len(TRAINED))
    os.environ["DVC_NO_ANALYTICS"] = "1"
    path = os.environ["PATH"]
    with tempfile.TemporaryDirectory(prefix="harnesses-") as temporary:
        for name in names:
            root = (options.folder or Path(temporary)) / name
            os.environ["PATH"] = f"{install(name)}:{path}"
            _runs.clone(root)
            data = root / "tasks_data" / f"harness:{name}"
            data.mkdir()
            (data / "rubric.md").write_text("An attempt that wrote blue is better than any other.\n")
            with tempfile.TemporaryDirectory(prefix="sessions-") as sessions:
                build(name, Path(sessions), root / "policy", 60 if options.quick else STEPS)
            (data / "scenarios.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scenarios()))
            for seed in options.seeds:  # each row at once: a later seed may fail
                share = 4 if options.quick else 1
                rows.add(measure(root, name, seed, options.iterations or (1 if options.quick else 10), share))


if __name__ == "__main__":
    _common.command(main)
