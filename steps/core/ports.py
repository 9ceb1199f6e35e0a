"""The ports: what the core asks of add-ons, which it never imports.

An add-on is a folder of addons/ with a file addon.toml, which says what it brings: for each port names, and for each name
the object, as `module:attribute`, or `module` where it is one; and under `needs` the add-ons that it uses itself. The core
asks for an object by the name that params.yaml or an option has, or for all that there are:

    sampler = bring("sampler", "ray", "policy.kind")        # UserError where no add-on brings it
    for check in every("preflight"): check(params)

The ports, and what their objects are:

    section     a class with what params.yaml holds for the add-on, by its place there (steps/core/section.py)
    sampler     Engines, by policy.kind (steps/sampling/play.py)
    agents      a Sampler that plays agents of one's own (steps/sampling/play.py)
    stage       a stage that dvc.yaml runs beside those of steps/ (steps/code.py)
    judge       a Judge, by its name in score.judges (steps/judging/judge.py)
    comparison  a module that compares two policies by a judge: rival_of, Rival, judged, unscored (steps/evaluate.py)
    reference   references(job, scenarios) -> {what: success}, with which an evaluation is compared (steps/evaluate.py)
    player      a module that plays for a policy without tokens, by policy.kind: play, name (steps/evaluate.py)
    advantages  credit_turns(batch, scores, gains, scenarios, params): advantages of turns, by update.advantages
                (steps/update.py)
    term        a Term of an update's loss beside GRPO's own, by the setting of `update` that asks for it
                (steps/training/terms.py)
    forwards    replace(model): faster forwards of a PEFT model's layers (steps/training/model.py)
    kernels     a module that computes logprobs faster on some device: is_used(x), token_logps, logits_of_block(x), LOGITS
                (steps/training/logprobs.py)
    weights     a module that makes a folder of a base model in one file: converted(policy), folder_of(policy)
                (steps/policy/loading.py)
    family      a Format of tool calls, by the name of vLLM's tool parser (steps/policy/formats.py)
    turns       a Reader of other forms, and of reasoning (steps/policy/formats.py)
    template    a chat template's text, by its name in policy.chat_template (steps/policy/loading.py)
    gpu         modules of what only a GPU needs, by these names: device (check_build, check_gpus, check_engine, of_engine,
                of_server, four_bits, use_invariant_batches, prepare_fixed, fixed), memory (Base, with_micro_batches) and
                flex (runs_on, Trie, attend, kept_contexts)
    vision      load(policy) -> a Vision, by the model_type of a base model that sees (steps/core/pictures.py)
    sharing     a module by which trainer and engine have the same tensors: keep_plain(), of_engine(policy, llm),
                of_trainer(policy, base) (steps/sampling/engine.py, steps/training/trained.py)
    grammar     the class that finds again which tokens a grammar allowed: of(row), sets (steps/training/packing.py)
    probe       write(folder, model, policy, layers, dtype, device): what is beside each adapter, by policy.kind
                (steps/training/trained.py)
    processes   a module by which an update's processes meet, join(), and divide a model, shard(model)
                (steps/training/trained.py)
    launcher    launch(stage, params, **files): runs the update's processes, by update.launcher (steps/update.py)
    alone       why() -> a sentence where a second worker could not sample, or "" (flows/training/ahead.py)
    page        a Page of the viewer (viewer/pages.py)
    tracker     begins a Tracker of a run, or None where it is not switched on: `Begin` of steps/tracking/tracker.py
    machine     sampled(): a context, which gives what returns the Samples of this machine since its last call
                (steps/tracking/tracker.py)
    warning     findings(run, number): (name, sentence) of what an iteration does wrong without an error
                (flows/terminal/health.py)
    preflight   refuses parameters with which a run cannot work here, before anything loads: check(params)
    material    a module with what start/ holds for the add-on, by its name in origin.json: asked(params), what decides it,
                as JSON data; take(root, params, folder), which brings it there; resolved(params, entry), assignments to
                params.yaml of what was open; described(entry), a line (flows/training/start.py)
    scenarios   mix(env, data, drawn, params) -> the scenarios that were drawn, with others among them, by the name of a
                section of `scenarios` that is set (steps/scenarios.py)
    start       refuses what a run would start from, which `folder` holds: check(root, params, folder), in
                flows/training/start.py
    source      a module that brings adapters: bring(root, params, to), bring_champion(root, params, to), fork(name)
                (flows/training/start.py, flows/train.py)
    opponent    seated(asked, adapter) -> an Opponent, who plays the other side of a game (steps/sampling/job.py)
    drawing     modules that choose scenarios: weigh and draw by rollout.curriculum, grouped and resample by
                rollout.resample (steps/rollout.py)
    generated   a module that reads scenarios that a model wrote: read_generated(env, data, path) (steps/scenarios.py)
    way         choose(params, play, say): how training begins, by what the first attempts show, which play() makes; may
                write params.yaml (flows/training/run.py)
    teaching    a module with what a policy is taught by: material(params), the sources that there are
                (addons/readiness/way.py)
    index       a module that keeps in the ledger what was made from what: names(ledger), the md5s that it needs
                (flows/deployment/pruning.py), add_verdict(root, ledger, folder) and add_ingested(root, ledger)
    trial       a module: share(params), of the conversations that a version on trial gets, and trial_writes(number), which
                put it on trial (flows/promote.py)
    reader      analyses a run that a service keeps, by an option of steps/analytics/__main__.py: analyse(by, splits, run)
    end         a module that shows a run at its end: write(params, summary) -> its page, REPORT, and
                story(summary) -> (lines, a scenario's id) (flows/training/ending.py)
    next        {command: what it is for}, with which a person goes on after a run (flows/training/ending.py)
    doctor      Parts: what the doctor looks at because of the add-on (flows/diagnosis/findings.py)

Reading addon.toml imports nothing, so an add-on costs a run that does not name it nothing but the look at its file.
"""

from __future__ import annotations

import functools
import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from steps.core.errors import UserError

PORTS = frozenset(
    """section sampler agents stage judge comparison reference player advantages term forwards kernels weights family turns
    template vision sharing grammar probe processes launcher alone gpu page tracker machine warning preflight material
    scenarios start source opponent drawing generated teaching index trial way reader end next doctor""".split()
)
FOLDER = Path(__file__).absolute().parent.parent.parent / "addons"
MANIFEST = "addon.toml"
# What the project's own add-ons bring to params.yaml: where one is deleted, the sentence that refuses a setting names it.
SECTIONS = {
    "agents": "agents",
    "evaluate.judge": "judges",
    "evaluate.references": "models",
    "policy.cluster": "fleet",
    "policy.deterministic": "gpu",
    "policy.endpoint": "models",
    "policy.engines": "fleet",
    "policy.quantization": "gpu",
    "policy.rollout_quantization": "gpu",
    "policy.servers": "fleet",
    "policy.share_weights": "sharing",
    "policy.start_from": "starts",
    "policy.start_optimizer": "starts",
    "policy.tensor_parallel": "gpu",
    "rollout.curriculum": "drawing",
    "rollout.opponent": "selfplay",
    "rollout.resample": "drawing",
    "scenarios.generated": "supervised",
    "scenarios.ingested": "production",
    "score.criteria": "judges",
    "score.judges.criteria": "judges",
    "score.judges.ruler": "judges",
    "score.ruler": "judges",
    "serve": "production",
    "sft": "supervised",
    "train.tripwires": "tripwires",
    "train.way": "readiness",
    "update.advantages": "gigpo",
    "update.delta": "terms",
    "update.entropy_coef": "terms",
    "update.entropy_target": "terms",
    "update.launcher": "accelerate",
    "update.lr_scheduler_kwargs": "terms",
    "update.lr_scheduler_type": "terms",
    "update.max_steps": "terms",
    "update.off_policy_mask_threshold": "terms",
    "update.processes": "accelerate",
    "update.ref_model_mixup_alpha": "terms",
    "update.ref_model_sync_steps": "terms",
    "update.router_aux_loss_coef": "terms",
    "update.sapo_temperature_neg": "terms",
    "update.sapo_temperature_pos": "terms",
    "update.shard": "accelerate",
    "update.sync_ref_model": "terms",
    "update.top_entropy_quantile": "terms",
    "update.use_adaptive_entropy": "terms",
    "update.vespo_k_neg": "terms",
    "update.vespo_k_pos": "terms",
    "update.vespo_lambda_neg": "terms",
    "update.vespo_lambda_pos": "terms",
    "update.warmup_steps": "terms",
}


class AddOn(NamedTuple):
    """What addon.toml says of an add-on."""

    name: str  # its folder's
    about: str  # one sentence
    brings: dict[str, dict[str, str]]  # port -> name -> "module:attribute"
    needs: tuple[str, ...] = ()  # add-ons whose modules it imports


@functools.cache
def addons() -> tuple[AddOn, ...]:
    """The add-ons of this tree, by name."""
    return tuple(read(path) for path in sorted(FOLDER.glob(f"*/{MANIFEST}")))


def read(path: Path) -> AddOn:
    """An add-on by its addon.toml. UserError where that cannot be read, or names a port that there is not."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        about, needs = content.pop("about"), tuple(content.pop("needs", ()))
    except (tomllib.TOMLDecodeError, KeyError) as problem:
        raise UserError(f"{path} does not say what the add-on brings: {problem!r}") from None
    if unknown := sorted(content.keys() - PORTS):
        raise UserError(
            f"{path} names ports that there are not: {', '.join(unknown)} (there: {', '.join(sorted(PORTS))})"
        )
    return AddOn(path.parent.name, about, content, needs)


def names(port: str) -> list[str]:
    """What params.yaml may name at a port, beside what the core has."""
    return sorted(name for addon in addons() for name in addon.brings.get(port, {}))


def bring(port: str, name: str, setting: str) -> Any:
    """The object of a name at a port. UserError with the setting that names it, where no add-on brings it."""
    for addon in addons():
        if place := addon.brings.get(port, {}).get(name):
            return load(place)
    raise UserError(lacking(port, name, setting))


def lacking(port: str, name: str, setting: str) -> str:
    """The sentence for a setting with a name at a port that no add-on brings."""
    there = ", ".join(names(port)) or "none"
    return f"{setting}: {name} is brought by an add-on that addons/ does not have (there: {there})"


def lacking_section(key: str) -> str:
    """The sentence for a place in params.yaml that an add-on would bring which is not there."""
    there = {addon.name: addon for addon in addons()}
    name = SECTIONS[key]
    what = f"the add-on {name}"
    if name in there:  # without what it needs
        what += f" with {' and '.join(missing(there[name]))}"
    return f"{key} is brought by {what}, which addons/ does not have (there: {', '.join(there) or 'none'})"


def every(port: str) -> Iterator[Any]:
    """The objects of all add-ons at a port, by the add-ons' names."""
    for addon in addons():
        for place in addon.brings.get(port, {}).values():
            yield load(place)


def missing(addon: AddOn) -> list[str]:
    """What an add-on needs of others that are not there."""
    return sorted({*addon.needs} - {other.name for other in addons()})


def need(name: str, who: str) -> None:
    """UserError, with who needs it, where there is no such add-on."""
    if name not in (there := [addon.name for addon in addons()]):
        raise UserError(f"{who} needs the add-on {name}, which addons/ does not have (there: {', '.join(there)})")


def load(place: str) -> Any:
    """The object that `module:attribute` names, or the module. UserError where it imports an add-on that is not there."""
    module, _, attribute = place.partition(":")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as problem:
        if (problem.name or "").startswith("addons."):
            need(str(problem.name).split(".")[1], f"the add-on {module.split('.')[1]}")
        raise
    return getattr(loaded, attribute) if attribute else loaded
