"""Does an agent train whose answers must fit a schema? pydantic-ai with its default `output_type`, against the same sampled
freely.

    python -m benchmarks.structured                    # seeds 1, 2 and 3, each with and without the grammar
    python -m benchmarks.structured --quick            # one seed with the grammar, one iteration

The agent asks for a colour and a reason by pydantic-ai's own forced tool, in an environment of its own (`agents.python`); an
attempt is right where the colour is blue. The base policy is small (addons/supervised/embedded_policy.py) and answers in the
right form, with red seven times in ten. With `rollout.grammar: exact` a grammar chooses the form and the update replays it;
with `free` the policy writes it, and pydantic-ai's validation asks again. Evaluations sample as the agent asks, with the
grammar. Success is on the test split at temperature 1; a row is one run, and `difference` what it gained.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _common, _runs

TASK = "colours"
PACKAGE = "pydantic-ai-slim[openai]==2.68.0"
HABIT = {"red": 0.7, "green": 0.1, "blue": 0.2}
SCENARIOS, STEPS, BATCH, CONTEXT, ITERATIONS = 240, 600, 8, 1024, 12
QUESTION = "Task {number}: which colour?"
AGENT = '''"""Asks for a colour and a reason, by a tool that pydantic-ai forces."""


async def rollout(episode):
    from typing import Literal

    from pydantic import BaseModel
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Choice(BaseModel):
        colour: Literal["red", "blue", "green"]
        why: str

    provider = OpenAIProvider(base_url=episode.base_url, api_key=episode.api_key)
    model = OpenAIChatModel(episode.model, provider=provider)
    agent = Agent(model, output_type=Choice, system_prompt="Choose a colour.", retries=2)
    try:
        result = await agent.run(episode.question)
    except Exception as problem:
        if "retries" not in str(problem) and "limit" not in str(problem):
            raise
        return -0.5  # its validation gave up: worse than another colour
    return float(result.output.colour == episode.data["answer"])
'''
FIELDS = {"colour": {"enum": ["red", "blue", "green"], "type": "string"}, "why": {"type": "string"}}
TOOL = {  # as pydantic-ai sends it
    "name": "final_result",
    "description": "The final response which ends this conversation",
    "parameters": {
        "properties": FIELDS,
        "required": ["colour", "why"],
        "type": "object",
        "additionalProperties": False,
    },
}


def build(folder: Path, steps: int) -> None:
    """Write the policy that answers by its habit."""
    import torch

    from addons.supervised import embedded_policy
    from steps.policy.chat import Chat

    questions = [QUESTION.format(number=number) for number in range(0, SCENARIOS, 2)]
    tool = {"type": "function", "function": TOOL}

    def answer(colour: str) -> dict[str, Any]:
        call = {"name": TOOL["name"], "arguments": {"colour": colour, "why": "it is asked for"}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}

    texts = [*questions, *(json.dumps(answer(colour)["tool_calls"]) for colour in HABIT), "Choose a colour."] * 9
    fixed = [*embedded_policy.FIXED_TEXTS, "\n" + json.dumps(tool)]
    tokenizer = embedded_policy.make_tokenizer(texts, fixed=fixed)
    tokenizer.model_max_length = CONTEXT
    torch.manual_seed(embedded_policy.SEED)
    torch.set_num_threads(1)
    model = embedded_policy.make_model(len(tokenizer))
    model.config.max_position_embeddings = CONTEXT
    rng, chat = random.Random(1), Chat(tokenizer, [tool])
    system = {"role": "system", "content": "Choose a colour."}
    prompts = [chat.prompt_ids([system, {"role": "user", "content": question}]) for question in questions]
    answers = {colour: chat.completion_ids(answer(colour)) for colour in HABIT}

    def row() -> tuple[list[int], list[int]]:
        prompt, [colour] = rng.choice(prompts), rng.choices(list(HABIT), list(HABIT.values()))
        return prompt + answers[colour], [0] * len(prompt) + [1] * len(answers[colour])

    def loss(_: int) -> dict[str, Any]:
        return {"loss": embedded_policy.batch_loss(model, [row() for _ in range(BATCH)])}

    embedded_policy.fit(model, steps, embedded_policy.LEARNING_RATE, loss)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prepare(root: Path, python: Path, steps: int) -> None:
    """A clone with the agent, its scenarios and its policy, and the agent's own environment."""
    _runs.clone(root)
    (root / f"environments/{TASK}.py").write_text(AGENT)
    data = root / "tasks_data" / TASK
    data.mkdir()
    rows = ({"question": QUESTION.format(number=number), "answer": "blue"} for number in range(SCENARIOS))
    (data / "scenarios.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    build(root / "policy", steps)
    subprocess.run([sys.executable, "-m", "venv", os.fspath(python.parent.parent)], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", PACKAGE], check=True, stdout=sys.stderr)


def measure(root: Path, python: Path, grammar: str, seed: int, iterations: int) -> dict[str, Any]:
    """The row of a run; `tokens_constrained`: those of the first batch at which the grammar left no choice."""
    settings: dict[str, Any] = {
        "seed": seed,
        "policy.base_model": "policy",
        "policy.context": CONTEXT,
        "scenarios.train": 96,
        "scenarios.val": 16,
        "scenarios.test": 32,
        "rollout.scenarios": 8,
        "rollout.attempts": 8,
        "rollout.max_tokens": 64,
        "rollout.max_turns": 4,
        "rollout.grammar": grammar,
        "agents.concurrency": 8,
        "agents.python": python,
        "score.judges.rule": 1,
        "update.learning_rate": 0.0005,
        "evaluate.temperature": 1.0,
        "evaluate.max_tokens": 64,
        "train.iterations": iterations,
        "train.patience": iterations,
    }
    _runs.show(root, [*_runs.training(settings), "--task", TASK, "--name", f"{grammar}-{seed}"])
    first = json.loads((root / "run/001/metrics.json").read_text())
    counts = {"tokens_collected": first["tokens_collected"]}
    counts |= {"tokens_constrained": first["tokens_dropped/constrained"], "tokens_trained": first["tokens_trained"]}
    return _runs.gain(f"{grammar} seed {seed}", json.loads((root / "run/summary.json").read_text()), 0.0) | counts


def main() -> None:
    parser = _common.parser("structured", __doc__, "one seed with the grammar, one iteration")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 1 2 3; quick: 1")
    options = parser.parse_args()
    seeds = options.seeds or ([1] if options.quick else [1, 2, 3])
    grammars = ["exact"] if options.quick else ["exact", "free"]
    rows = _common.begin("structured", options, 1 if options.quick else len(seeds) / 3)
    os.environ["DVC_NO_ANALYTICS"] = "1"
    with tempfile.TemporaryDirectory(prefix="structured-") as folder:
        root, python = Path(folder) / TASK, Path(folder) / "agent/bin/python"
        prepare(root, python, 100 if options.quick else STEPS)
        for seed, grammar in itertools.product(seeds, grammars):
            rows.add(measure(root, python, grammar, seed, 1 if options.quick else ITERATIONS))


if __name__ == "__main__":
    _common.command(main)
