"""The plan against what happens: peak memory and seconds of a rollout and an update, planned and measured.

    python -m benchmarks.plan               # five configurations that nothing was fitted to, about 5 minutes on 2 cores
    python -m benchmarks.plan --quick       # the first of them
    python -m benchmarks.plan --fitted      # those that the plan's constants were fitted to

Each runs in a process of its own (benchmarks/_plan.py), with a random model. `ratio` is planned / measured peak memory
(RSS); `seconds_ratio` the same of rollout and update together, with this machine's rates measured before and after. Seconds
are those that the main thread was at work, so that other programs hardly count; `wall_seconds` are the clock's. Goals:
within 0.15 of 1, and within 0.25 of 1. The last three rows are configurations that cannot run here, and are refused.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from addons.planning import cards, memory, models, plan
from addons.planning.workload import Episodes
from benchmarks import _common
from benchmarks._common import call, tell
from benchmarks._plan import params_of

Configuration = dict[str, Any]


def model(kind: str, sizes: tuple[int, ...], dtype: str = "float32") -> dict[str, Any]:
    """A random model's configuration, and its number format; `sizes` as `models.SIZES` names them."""
    shape = models.dense(kind, sizes, kind != "mistral")
    return shape | {"dtype": dtype, "max_position_embeddings": 8192}


MODELS = {
    "tiny": model("qwen3", (128, 384, 4, 4, 2, 2339)),
    "medium": model("qwen3", (512, 1536, 8, 8, 4, 2339)),
    "wide": model("qwen3", (768, 2304, 12, 12, 4, 32000)),
    "small": model("llama", (256, 768, 6, 4, 2, 8192)),
    "deep": model("qwen2", (384, 1024, 20, 6, 2, 16000)),
    "words": model("mistral", (448, 1280, 8, 7, 7, 50000)),
    "smollm2": model("llama", (576, 1536, 30, 9, 3, 49152), "bfloat16"),
}


def configuration(
    name: str, prompt: int, sampled: int, batch: tuple[int, int], **sections: dict[str, Any]
) -> Configuration:
    """A configuration: `batch` is scenarios and attempts; `sections` of params.yaml differ from the defaults."""
    rollout = {"scenarios": batch[0], "attempts": batch[1], "max_tokens": sampled}
    words = MODELS[name]["vocab_size"]
    return {"model": name, "prompt": prompt, "vocabulary": words, "params": {"rollout": rollout, **sections}}


BF16 = {"dtype": "bfloat16"}
FITTED = {
    "tiny": configuration("tiny", 200, 64, (16, 8)),
    "medium": configuration("medium", 64, 64, (16, 8), policy={"context": 512}),
    "medium_bfloat16": configuration("medium", 64, 64, (16, 8), policy=BF16 | {"context": 512}),
    "wide": configuration("wide", 128, 48, (4, 8), policy={"context": 512}),
    "wide_bfloat16": configuration("wide", 128, 48, (4, 8), policy=BF16 | {"lora": {"rank": 32, "alpha": 64}}),
    "long": configuration("medium", 1500, 96, (3, 8), policy={"context": 4096}),
}
HELD_OUT = {
    "small": configuration("small", 300, 96, (8, 8), policy={"lora": {"rank": 8}}, update={"steps_per_generation": 4}),
    "deep": configuration("deep", 160, 48, (8, 4), policy={"context": 1024}, update={"beta": 0.0}),
    "words": configuration("words", 100, 64, (8, 8), policy=BF16 | {"lora": {"rank": 64, "alpha": 64}}),
    "long_bfloat16": configuration("small", 2400, 128, (2, 8), policy=BF16 | {"context": 4096}),
    "smollm2": configuration("smollm2", 80, 32, (4, 8), policy=BF16 | {"context": 256}),
}
REFUSED: dict[str, dict[str, Any]] = {
    "7B": {"policy": {"base_model": "Qwen/Qwen2.5-7B-Instruct", "dtype": "bfloat16"}},
    "0.5B with a context of 100,000": {"policy": {"base_model": "Qwen/Qwen2.5-0.5B-Instruct", "context": 100_000}},
    "1.5B in float32": {
        "policy": {"base_model": "Qwen/Qwen2.5-1.5B-Instruct"},
        "update": {"tokens_per_micro_batch": 16384},
    },
}


def compare(name: str, chosen: Configuration, folder: Path) -> dict[str, Any]:
    """The row of one configuration: planned and measured."""
    tell(f"{name}: planning, then running")
    params = params_of(chosen, folder)
    os.environ["OMP_WAIT_POLICY"] = "passive"
    before = cards.this_machine(params.policy.threads)
    measured = call("_plan.run", folder=folder, configuration=chosen)
    after = cards.this_machine(params.policy.threads)
    rates = ("bfloat16", "float32", "bandwidth")  # other programs on the machine change them
    machine = before._replace(**{rate: (getattr(before, rate) + getattr(after, rate)) / 2 for rate in rates})
    attempts = params.rollout.scenarios * params.rollout.attempts
    episodes = Episodes(chosen["prompt"], 1, measured["sampled"] / attempts, 0, "as measured")
    made = plan.make(params, models.shape_of(params.policy), machine, episodes)
    peak = made.memory.peak / memory.MB
    stages = {stage: made.stages[stage].total for stage in ("rollout", "update")}
    spent = {stage: measured["seconds"][stage] for stage in stages}
    return {
        "name": name,
        "ratio": round(peak / measured["peak"], 3),
        "peak_mb": measured["peak"],
        "peak_mb_planned": round(peak),
        "seconds_ratio": round(sum(stages.values()) / sum(spent.values()), 3),
        **{f"{stage}_seconds": round(value, 2) for stage, value in spent.items()},
        **{f"{stage}_seconds_planned": round(value, 2) for stage, value in stages.items()},
        "wall_seconds": round(sum(measured["wall"][stage] for stage in stages), 2),
        "gflops": round(machine.float32 / 1e9),
    }


def refuse(name: str, sections: dict[str, Any]) -> dict[str, Any]:
    """The row of a configuration that cannot run on this machine's CPU: 1 where it was refused. Nothing is run."""
    params = params_of({"model": "", "params": sections}, Path())
    machine = cards.Machine("this machine", cards.memory(), 1, 1, 1, False)
    made = plan.make(params, models.shape_of(params.policy), machine, Episodes(400, 4, 64, 64, "assumed"))
    return {"name": f"refused: {name}", "ratio": int(bool(plan.refusal(made))), "refusal": plan.refusal(made)}


def main() -> None:
    parser = _common.parser("plan", __doc__, "the first configuration of five")
    parser.add_argument(
        "--fitted", action="store_true", help="the configurations that constants were fitted to, instead"
    )
    options = parser.parse_args()
    chosen = FITTED if options.fitted else HELD_OUT
    if options.quick:
        chosen = dict(list(chosen.items())[:1])
    rows = _common.begin("plan", options, None if options.fitted else 1.0, " --fitted" if options.fitted else "")
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        call("_plan.prepare", folder=folder, models={name["model"]: MODELS[name["model"]] for name in chosen.values()})
        for name, configuration in chosen.items():
            rows.add(compare(name, configuration, Path(folder)))
        for name, sections in REFUSED.items():
            rows.add(refuse(name, sections))


if __name__ == "__main__":
    _common.command(main)
