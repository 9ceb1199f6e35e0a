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
    parts       advantages by the parts of rewards, by update.multi_objective_aggregation (steps/update.py)
    punishment  what is taken from each score, by update.truncated_completions (steps/update.py)
    term        a Term of an update's loss beside GRPO's own, by the setting of `update` that asks for it
                (steps/training/terms.py)
    forwards    replace(model): faster forwards of a PEFT model's layers (steps/training/model.py)
    kernels     a module that computes logprobs faster on some device: is_used(x), token_logps, logits_of_block(x), LOGITS
                (steps/training/logprobs.py)
    operators   use(): faster operators for the adapter in vLLM on a CPU (steps/sampling/engine.py)
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
    ahead       a module that runs rollouts ahead of the updates: worker(params, gpus, cores), Ahead, settle(last, params)
                (flows/training/run.py)
    alone       why() -> a sentence where a second worker could not sample, or "" (addons/overlap/ahead.py)
    page        a Page of the viewer (viewer/pages.py)
    tracker     begins a Tracker of a run, or None where it is not switched on: `Begin` of steps/tracking/tracker.py
    machine     sampled(): a context, which gives what returns the Samples of this machine since its last call
                (steps/tracking/tracker.py)
    warning     findings(run, number): (name, sentence) of what an iteration does wrong without an error
                (flows/terminal/health.py)
    watch       watches a run: made of (run, params), add(iteration) -> an alarm with a sentence(), at which the run ends, or
                None; warning, which is said at its begin (flows/training/run.py, flows/promotion/judging.py)
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
    way         choose(params, play, say): how training begins, by what the base policy's validation shows, or the first
                attempts, which play() makes; may write params.yaml (flows/training/run.py)
    teaching    a module with what a policy is taught by: material(params), the sources that there are
                (addons/readiness/way.py)
    index       a module that keeps in the ledger what was made from what: names(ledger), the md5s that it needs
                (flows/deployment/pruning.py), add_verdict(root, ledger, folder) and add_ingested(root, ledger)
    trial       a module: share(params), of the conversations that a version on trial gets, and trial_writes(number), which
                put it on trial (flows/promote.py)
    masker      a Masker that finds more secrets than those that the environment holds (steps/core/masking.py)
    reader      analyses a run that a service keeps, by an option of steps/analytics/__main__.py: analyse(by, splits, run)
    pages       a module that shows a run as it goes on: iteration(points, row, iterations), draw(points, best, picture),
                end(picture, tracker), and result(lines, new) with the version that is new in the registry
                (flows/training/run.py)
    card        a module that makes the card of a registered model: described(root, adapter, tags, evaluations, run),
                card(tags), is_card(text), readme(title, tags, text, merged), with_verdict(text, verdict)
                (steps/registry/publish.py)
    end         a module that shows a run at its end: write(params, summary) -> its page, REPORT,
                table(iterations) -> lines, and story(summary) -> (lines, a scenario's id) (flows/training/ending.py)
    next        {command: what it is for}, with which a person goes on after a run (flows/training/ending.py)
    dvc         parts() -> those of DVC that are replaced while stages run, to make it quicker (flows/repro/dvc_internals.py)
    doctor      Parts: what the doctor looks at because of the add-on (flows/diagnosis/findings.py)

Reading addon.toml imports nothing, so an add-on costs a run that does not name it nothing but the look at its file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from steps.core import manifests
from steps.core.errors import UserError
from steps.core.manifests import AddOn

PORTS = frozenset(
    """section sampler agents stage judge comparison reference player advantages parts punishment term forwards kernels
    operators weights family turns template vision sharing grammar probe processes launcher ahead alone gpu page tracker
    machine warning watch preflight material scenarios start source opponent drawing generated teaching index trial way
    masker reader pages card end next dvc doctor""".split()
)
# What the project's own add-ons bring to params.yaml: where one is deleted, the sentence that refuses a setting names it.
SECTIONS = {
    key: addon
    for addon, keys in {
        "accelerate": "update.launcher update.processes update.shard",
        "advantages": """update.advantages update.max_completion_len update.multi_objective_aggregation
            update.soft_punish_cache""",
        "agents": "agents rollout.grammar",
        "drawing": "rollout.curriculum rollout.resample",
        "fleet": "evaluate.shards policy.cluster policy.engines policy.servers rollout.shards",
        "gpu": """policy.deterministic policy.gpu_memory policy.quantization policy.rollout_quantization
            policy.tensor_parallel""",
        "judges": "evaluate.judge score.criteria score.judges.criteria score.judges.ruler score.ruler",
        "models": "evaluate.references policy.endpoint",
        "overlap": "train.overlap",
        "production": "promote.decides scenarios.ingested serve",
        "readiness": "train.way",
        "selfplay": "rollout.opponent",
        "sharing": "policy.share_weights",
        "starts": "policy.start_from policy.start_optimizer",
        "supervised": "scenarios.generated sft",
        "terms": """update.cast_lm_head_to_fp32 update.delta update.entropy_coef update.entropy_target
            update.lr_scheduler_kwargs update.lr_scheduler_type update.max_steps update.off_policy_mask_threshold
            update.ref_model_mixup_alpha update.ref_model_sync_steps update.router_aux_loss_coef
            update.sapo_temperature_neg update.sapo_temperature_pos update.sync_ref_model
            update.top_entropy_quantile update.use_adaptive_entropy
            update.vespo_k_neg update.vespo_k_pos update.vespo_lambda_neg update.vespo_lambda_pos
            update.vllm_importance_sampling_clip_max update.vllm_importance_sampling_clip_min
            update.vllm_importance_sampling_correction
            update.vllm_importance_sampling_mode update.warmup_steps update.weight_decay""",
        "tripwires": "promote.false_alarms train.tripwires",
    }.items()
    for key in keys.split()
}


def addons() -> tuple[AddOn, ...]:
    """The add-ons of this tree, by name. UserError where an addon.toml cannot be read, or names a port that there is not."""
    for addon in manifests.addons():
        if addon.fault:
            raise UserError(addon.fault)
        if unknown := ", ".join(sorted(addon.brings.keys() - PORTS)):
            path = manifests.folder() / addon.name / manifests.MANIFEST
            raise UserError(f"{path} names ports that there are not: {unknown} (there: {', '.join(sorted(PORTS))})")
    return manifests.addons()


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
    try:
        return manifests.load(place)
    except ModuleNotFoundError as problem:
        if (problem.name or "").startswith("addons."):
            need(str(problem.name).split(".")[1], f"the add-on {place.split('.')[1]}")
        raise
