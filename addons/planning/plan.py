"""A plan: what a configuration needs on a machine, whether it fits, what takes longest, and which knob would help.

    plan = make(params, shape, machine, episodes)
    print(report(plan, price=None))
    refusal(plan)  # a sentence, or "" where it fits

The knob is found by planning again with each of a few changed, so that it follows from the same formulas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from addons.planning import cards, memory, models, prompts, servers, speed, workload
from addons.planning.cards import CARDS, GIB, Machine
from addons.planning.memory import Memory
from addons.planning.shapes import Shape
from addons.planning.speed import Seconds
from addons.planning.workload import Batch, Episodes
from flows.training.start import read_origin
from steps.core.errors import UserError
from steps.core.section import at
from steps.policy import adapter
from steps.training.batches import TOKENS

if TYPE_CHECKING:
    from pathlib import Path

    from steps.core.params import Params

SLACK = 1.1  # share of a machine's memory above which a run is refused: a plan may be 10 % too high
WORTH = 0.97  # a knob is named where an iteration would take less than this share of the time
ADAPTERS = {"policy": ("policy", "policy.start_from"), "opponent": ("champion", "rollout.opponent")}
WHAT = {
    "products": "products of matrices",
    "attention": "attention",
    "traffic": "reading and writing memory",
    "fixed": "work that does not depend on the model's width",
}


class Plan(NamedTuple):
    """What a configuration needs on a machine."""

    params: Params
    shape: Shape
    machine: Machine
    episodes: Episodes
    batch: Batch
    memory: Memory
    stages: dict[str, Seconds]
    factors: dict[str, float]  # measured / planned seconds of stages, by which `stages` are corrected
    rates: str  # where the seconds are from

    @property
    def seconds(self) -> float:
        """Of an iteration: rollout, update and evaluate, one after another. With train.overlap it may take less."""
        return sum(stage.total for stage in self.stages.values())


def make(
    params: Params,
    shape: Shape,
    machine: Machine,
    episodes: Episodes,
    factors: dict[str, float] | None = None,
    rates: str = "",
) -> Plan:
    """The plan. `factors`: measured / planned seconds of stages, where a run was measured (`workload.last_run`);
    `rates` says where the seconds are from."""
    factors, original = factors or {}, params
    params = memory.settled(shape, params, machine, episodes.length)
    batch = workload.batch(params, episodes)
    groups, attempts = params.rollout.scenarios, params.rollout.attempts
    stages = {
        "rollout": speed.engine(shape, params, episodes, groups, attempts, machine),
        "update": speed.update(shape, params, batch, machine),
        "evaluate": speed.evaluation(shape, params, episodes, machine),
    }
    stages = {name: stage.times(factors.get(name, 1.0)) for name, stage in stages.items()}
    needed = memory.of(shape, params, batch, machine)
    return Plan(original, shape, machine, episodes, batch, needed, stages, factors, rates or machine.source)


def refusal(plan: Plan, slack: float = 1.0) -> str:
    """Why the configuration cannot run on the machine; empty where it can. It is refused above `slack` × its memory."""
    policy, machine = plan.params.policy, plan.machine
    cache = plan.memory.parts["KV cache"]
    needed = memory.size(plan.params) * plan.shape.cached() * policy.context
    if machine.is_card and policy.dtype == "float32":
        return "policy.dtype is float32, in which vLLM serves no LoRA adapter on a card: set it to bfloat16"
    if plan.shape.experts and not machine.is_card:
        return (
            f"{policy.base_model} is a mixture of experts, whose adapters vLLM serves on a GPU alone: plan with --gpu"
        )
    if plan.memory.peak > slack * machine.memory:
        phase = (
            "while the trainer works" if plan.memory.training >= plan.memory.sampling else "while the engine samples"
        )
        return (
            f"{policy.base_model} does not fit: {gib(plan.memory.peak)} are needed {phase}, and {machine.name} has "
            f"{gib(machine.memory)}{_cure(plan)}"
        )
    if cache < needed:
        knob = "policy.gpu_memory" if machine.is_card else "the variable VLLM_CPU_KVCACHE_SPACE (GiB)"
        return (
            f"an episode of policy.context = {policy.context} tokens has {gib(needed)} of keys and values, and the engine's "
            f"cache is {gib(max(cache, 0.0))}: lower policy.context, or raise {knob}"
        )
    if 0 < plan.shape.positions < policy.context:
        return (
            f"policy.context is {policy.context}, and {policy.base_model} was trained on at most {plan.shape.positions} "
            "tokens: lower policy.context, or set policy.base_model to a model that was trained on longer texts"
        )
    return ""


def check(params: Params) -> None:
    """UserError where a run clearly cannot work here, before anything loads: by the shape of a model whose config.json is at
    hand, and the shortest episodes; by a first prompt (addons/planning/prompts.py). The shape of a model of a kind that is
    not known is not checked, nor of one in 4 bits or on several cards, which the plan does not know."""
    if params.policy.has_adapter:
        prompts.check(params)
        servers.check(params)
    if params.policy.kind != "vllm" or unplanned(params):
        return
    try:
        shape = models.at_hand(params.policy)
    except UserError:
        return
    if shape is None:
        return
    machine = cards.card_here() or Machine("this machine", cards.memory(), 1, 1, 1, False)
    shortest = Episodes(1, 1, 1, 0, "the shortest there are")
    if refused := refusal(make(params, shape, machine, shortest), SLACK):
        raise UserError(f"{refused} (`make plan` shows the parts)")


def check_adapters(root: Path, params: Params, folder: Path) -> None:
    """UserError where an adapter in `folder` has other weights than one of the policy, whose shape can be read here."""
    policy, origin = params.policy, read_origin(folder) or {}
    try:
        shape = models.at_hand(policy)
    except UserError:
        return
    for name, (place, key) in ADAPTERS.items():
        if shape is None or name not in origin:
            continue
        sizes = adapter.shapes(folder / place / adapter.FILES[1])
        weights = sum(size[0] * size[1] for size in sizes.values() if len(size) == 2)
        if weights != shape.lora(policy.lora.rank):
            layers = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in sizes})
            raise UserError(
                f"{key}: {origin[name]['resolved']} has {weights:,} weights, in {', '.join(layers)}, and an adapter of "
                f"{policy.base_model} has {shape.lora(policy.lora.rank):,}, in all linear layers: it is of other layers or "
                "of another model"
            )


def unplanned(params: Params) -> str:
    """The setting that the plan's formulas leave out, with its value; empty where there is none."""
    policy, launcher, processes = params.policy, at(params, "update.launcher"), at(params, "update.processes") or 1
    settings = {
        "policy.kind": policy.kind if policy.kind != "vllm" else None,
        "policy.quantization": at(policy, "quantization"),
        "policy.rollout_quantization": at(policy, "rollout_quantization"),
        "policy.tensor_parallel": cards if (cards := at(policy, "tensor_parallel") or 1) > 1 else None,
        "update.processes": processes if processes > 1 else None,
        "update.launcher": launcher if launcher == "ray" else None,
    }
    return next((f"{name}: {value}" for name, value in settings.items() if value), "")


def _cure(plan: Plan) -> str:
    """What would make it fit: a knob, or a card."""
    for text, changed in knobs(plan):
        if changed.memory.peak <= plan.machine.memory and changed.memory.parts["KV cache"] > 0:
            return f"; {text} would make it fit ({gib(changed.memory.peak)})"
    if plan.machine.is_card:
        for card in sorted(CARDS.values(), key=lambda card: card.memory):
            params = plan.params
            larger = make(params, plan.shape, card, plan.episodes)
            if larger.memory.peak <= card.memory and larger.memory.parts["KV cache"] > 0:
                return f"; the smallest card with figures here that it fits is {card.name}"
        return "; it fits none of the cards with figures here by itself"
    return "; take a smaller model"


def knobs(plan: Plan) -> list[tuple[str, Plan]]:
    """Single changes of parameters that may help, each with its plan."""
    params, plans = plan.params, []
    tokens, rank = params.update.tokens_per_micro_batch or TOKENS, max(1, params.policy.lora.rank // 2)
    changes: list[tuple[str, str, Any, str]] = [  # section, key, value, and how that is written where not as in Python
        ("policy", "dtype", "bfloat16", ""),
        ("update", "gradient_checkpointing", True, "true"),
        ("update", "gradient_checkpointing", False, "false"),
        ("update", "tokens_per_micro_batch", max(64, tokens // 4), ""),
        ("update", "tokens_per_micro_batch", tokens * 4, ""),
        ("update", "steps_per_generation", 4, ""),
        ("update", "beta", 0.0, "0 (no KL term)"),
        ("policy", "lora", params.policy.lora.model_copy(update={"rank": rank}), f"{rank}"),
        ("evaluate", "sampled_attempts", 0, ""),
        ("scenarios", "val", max(1, params.scenarios.val // 2), ""),
        *(("policy", "gpu_memory", share, "") for share in (0.3, 0.4, 0.6, 0.7, 0.8) if plan.machine.is_card),
    ]
    for section, key, value, written in changes:
        before = getattr(params, section)
        if getattr(before, key) != value:
            changed = params.model_copy(update={section: before.model_copy(update={key: value})})
            text = f"{section}.{'lora.rank' if key == 'lora' else key}={written or value}"
            plans.append((text, make(changed, plan.shape, plan.machine, plan.episodes, plan.factors)))
    return plans


def bottleneck(plan: Plan) -> tuple[str, str]:
    """(the stage that takes longest, what it spends most on)."""
    stage = max(plan.stages, key=lambda name: plan.stages[name].total)
    spent = plan.stages[stage]._asdict()
    return stage, WHAT[max(spent, key=lambda name: spent[name])]


def knob(plan: Plan) -> str:
    """The single change of a parameter that would save most time and still fits; empty where none is worth it."""
    better = [(changed.seconds, text) for text, changed in knobs(plan) if not refusal(changed)]
    seconds, text = min(better, default=(plan.seconds, ""))
    if seconds > WORTH * plan.seconds:
        return ""
    return f"{text}: {seconds:.3g} s an iteration in place of {plan.seconds:.3g}"


def gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"


def count(number: float) -> str:
    """A number of parameters, as people write it: 26.4 M, 7.62 B."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,.0f}"


def report(plan: Plan, price: float | None = None) -> str:
    """The plan as text: model, memory by part, seconds by stage, money where there is a price an hour, bottleneck, knob."""
    params, shape, machine, episodes = plan.params, plan.shape, plan.machine, plan.episodes
    experts = f", {count(shape.active)} active in each token" if shape.experts else ""
    lines = [
        f"model     {params.policy.base_model}: {shape.kind}, {count(shape.parameters)} parameters{experts}; "
        f"{params.policy.dtype}, LoRA of rank {params.policy.lora.rank} ({count(shape.lora(params.policy.lora.rank))})",
        f"machine   {machine.name}: {gib(machine.memory)}, {speed.peak(machine, params) / 1e9:,.0f} GFLOP/s, "
        f"{machine.bandwidth / 1e9:,.0f} GB/s ({machine.source})",
        f"episodes  {plan.batch.episodes} of {episodes.length:,.0f} tokens in {episodes.turns:.3g} turns, "
        f"{episodes.turns * episodes.sampled:,.0f} of them sampled ({episodes.source})",
        "",
        f"{'memory':<26}{'MiB':>10}",
        *(f"{name:<26}{value / memory.MB:>10,.0f}" for name, value in plan.memory.parts.items()),
        f"{'while the engine samples':<26}{plan.memory.sampling / memory.MB:>10,.0f}",
        f"{'while the trainer works':<26}{plan.memory.training / memory.MB:>10,.0f}",
        "",
        f"{'seconds of an iteration':<26}{'all':>10}{'products':>10}{'attention':>10}{'memory':>10}{'fixed':>10}",
    ]
    for name, stage in plan.stages.items():
        lines.append(f"{name:<26}" + "".join(f"{value:>10.2f}" for value in (stage.total, *stage)))
    iterations = params.train.iterations
    lines += [
        f"{'together':<26}{plan.seconds:>10.2f}    × {iterations} iterations: {duration(iterations * plan.seconds)}",
        f"(rates: {plan.rates})",
    ]
    if price is not None:
        hourly = plan.seconds / 3600 * price
        lines.append(f"money     {hourly:.2g} an iteration, {iterations * hourly:.2g} a run, at {price:g} an hour")
    lines += ["", f"bottleneck: {' of '.join(reversed(bottleneck(plan)))}"]
    if refusal(plan):
        return "\n".join(lines)
    lines.append(f"knob: {knob(plan) or 'no single one would save much'}")
    left = machine.memory - plan.memory.peak
    lines.append(f"it fits: {gib(plan.memory.peak)} at most, {gib(left)} are left")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )
