"""params.yaml: what is accepted, and the sentence that each mistake ends in."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from addons.starts.section import Started
from addons.supervised.section import Sft
from addons.terms.section import Terms
from steps.core import params
from steps.core.errors import UserError
from steps.core.params import Params, RegisterParams, RolloutParams, Section, Update, load, parse

ROOT = Path(__file__).parent.parent.parent
STAGES = [kind for kind in vars(params).values() if isinstance(kind, type) and kind.__name__.endswith("Params")]


CORRECTED = {"vllm_importance_sampling_correction": True}


def keys(kind: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in kind.model_fields.items()}


@pytest.fixture
def refused(tmp_path: Path) -> Any:
    """The sentence in which a text, or a change to params.yaml, ends."""

    def sentence(written: str | dict[str, Any]) -> str:
        path = tmp_path / "params.yaml"
        path.write_text(written if isinstance(written, str) else yaml.safe_dump(written))
        with pytest.raises(UserError) as problem:
            load(path, RolloutParams)
        text = str(problem.value)
        assert text.startswith(f"{path}")
        assert "\n" not in text
        assert problem.value.code == 2
        return text.removeprefix(f"{path}").removeprefix(": ").strip()

    return sentence


def test_the_projects_own_file_loads_and_says_nothing_that_no_stage_reads() -> None:
    whole = load(ROOT / "params.yaml", Params)
    written = yaml.safe_load((ROOT / "params.yaml").read_text())
    dumped = whole.model_dump(by_alias=True)
    assert all(dumped[key] == value or value.items() <= dumped[key].items() for key, value in written.items())
    assert whole.rollout.attempts * whole.rollout.scenarios >= 128
    assert (whole.scenarios.test, whole.task) >= (200, "email_search")


def test_defaults_are_the_recipe() -> None:
    """params.yaml writes down what is worth seeing; it changes what makes email_search learn faster (docs/recipes.md)."""
    faster = {"loss_type": "dr_grpo", "scale_rewards": "none", "num_iterations": 2}
    own = Params.model_validate({"update": faster, "train": {"iterations": 8, "patience": 8}})
    assert load(ROOT / "params.yaml", Params) == own


@pytest.mark.parametrize("task", ["x; cmd", "x'", "$(id)", "a b", "../x", "a/b", ".x", "x.", "a..b", "x\n", "", "ü"])
def test_a_task_that_is_no_name_never_reaches_a_command(refused: Any, task: str) -> None:
    assert "is no name of a task" in refused({"task": task}) or task == ""


def test_dotted_tasks_are_names() -> None:
    assert Params(task="my_team.my_task2").task == "my_team.my_task2"


def test_a_file_that_is_no_text_or_no_file(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(b"\x89PNG\xff")
    with pytest.raises(UserError, match=r"params\.yaml is no text in UTF-8 \(.*\); bring it back \(`git checkout"):
        load(tmp_path / "params.yaml", Params)
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\); bring it back"):
        load(tmp_path, Params)


def test_an_empty_file_is_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("# nothing\n")
    assert load(tmp_path / "params.yaml", Params) == Params()


def test_a_stage_gets_what_it_declares_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("seed: 7\nrollout: {attempts: 4}\nregister: {name: mine}\n")
    read = load(tmp_path / "params.yaml", RolloutParams)
    assert set(read.model_dump()) == {"task", "tasks", "seed", "policy", "rollout", "agents"}
    assert (read.seed, read.rollout.attempts, read.rollout.scenarios) == (7, 4, 16)
    assert load(tmp_path / "params.yaml", RegisterParams).register_.name == "mine"


def test_the_whole_file_is_checked_whatever_is_read(refused: Any) -> None:
    assert "update.beta" in refused({"update": {"beta": -1}})


@pytest.mark.parametrize("kind", STAGES, ids=lambda kind: kind.__name__)
def test_what_a_stage_declares_are_keys_of_the_file(kind: type[Section]) -> None:
    assert keys(kind) <= keys(Params)
    for name, field in kind.model_fields.items():
        assert field.annotation == Params.model_fields[name].annotation
        assert field.alias == Params.model_fields[name].alias


def test_every_stage_is_among_them() -> None:
    assert {"ScenariosParams", "RolloutParams", "UpdateParams", "RegisterParams"} <= {kind.__name__ for kind in STAGES}
    read = set().union(*(keys(kind) for kind in STAGES if kind is not Params))
    assert keys(Params) - read == {"train", "sft"}  # the flow's own, and an add-on's stage's


@pytest.mark.parametrize(
    ("written", "words"),
    [
        # unknown keys: named, with those that are known
        (
            {"rolout": {}},
            "rolout is not a known key (known: "
            "agents, evaluate, policy, promote, register, rollout, scenarios, score, seed, serve, sft, task, tasks, "
            "train, update)",
        ),
        (
            {"rollout": {"attempt": 4}},
            "rollout.attempt is not a known key (known: attempts, curriculum, grammar, max_tokens, max_turns, opponent, "
            "order, resample, scenarios, shards, temperature, tool_timeout)",
        ),
        ({"policy": {"lora": {"r": 4}}}, "policy.lora.r is not a known key (known: alpha, rank)"),
        ({"register": {"nam": "x"}}, "register.nam is not a known key (known: name)"),
        ({"register_": {"name": "x"}}, "register_ is not a known key"),
        # values out of range
        ({"rollout": {"attempts": 1}}, "rollout.attempts: Input should be greater than or equal to 2 (it is 1)"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature: Input should be greater than 0 (it is 0)"),
        (
            {"rollout": {"temperature": float("nan")}},
            "rollout.temperature: Input should be a finite number (it is nan)",
        ),
        ({"rollout": {"max_turns": 0}}, "rollout.max_turns: Input should be greater than or equal to 1 (it is 0)"),
        (
            {"update": {"learning_rate": True}},
            "update.learning_rate: Input should be a valid number, unable to parse string as a number (it is 'true')",
        ),
        ({"register": {"name": "team/mult"}}, "register.name: String should match pattern"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0 (it is -1)"),
        ({"scenarios": {"val": 0}}, "scenarios.val: Input should be greater than or equal to 1 (it is 0)"),
        ({"policy": {"context": 8}}, "policy.context: Input should be greater than or equal to 64 (it is 8)"),
        ({"policy": {"lora": {"rank": 0}}}, "policy.lora.rank: Input should be greater than or equal to 1 (it is 0)"),
        ({"policy": {"base_model": ""}}, "policy.base_model: String should have at least 1 character (it is '')"),
        ({"policy": {"gpu_memory": 1}}, "policy.gpu_memory: Input should be less than 1 (it is 1)"),
        ({"policy": {"dtype": "int8"}}, "policy.dtype: Input should be 'float32' or 'bfloat16' (it is 'int8')"),
        (
            {"update": {"loss_type": "ppo"}},
            "update.loss_type: Input should be 'grpo', 'dr_grpo', 'dapo', 'bnpo', 'cispo', 'gspo', 'sapo', 'luspo' "
            "or 'vespo' (it is 'ppo')",
        ),
        ({"update": {"epsilon": 1}}, "update.epsilon: Input should be less than 1 (it is 1)"),
        ({"update": {"learning_rate": 0}}, "update.learning_rate: Input should be greater than 0 (it is 0)"),
        ({"train": {"iterations": 1000}}, "train.iterations: Input should be less than or equal to 999 (it is 1000)"),
        ({"score": {"judges": {"vibes": 1}}}, "score.judges.vibes is not a known key (known: criteria, rule, ruler)"),
        ({"score": {"judges": {"rule": 0}}}, "score.judges: one of rule, criteria, ruler must be above 0"),
        ({"score": {"judges": {"ruler": 1}}}, "score.ruler is needed with score.judges.ruler above 0"),
        (
            {"score": {"ruler": {"endpoint": {"model": "m"}}}},
            "score.ruler would have no effect: score.judges.ruler is 0",
        ),
        ({"score": {"criteria": {}}}, "score.criteria would have no effect: score.judges.criteria is 0"),
        (
            {"score": {"judges": {"criteria": 1}, "criteria": {"accuracy": 0.5}}},
            "score.criteria: the weights must sum to 1, not 1.1",
        ),
        (
            {"score": {"judges": {"ruler": 1}, "ruler": {"endpoint": {"model": "m"}, "max_run_cost": 1}}},
            "score.ruler.max_run_cost needs price_in and price_out of its endpoint",
        ),
        (
            {"update": {"lr_scheduler_type": "step"}},
            "update.lr_scheduler_type: Input should be 'constant', 'linear', 'cosine' or",
        ),
        (
            {"update": {"warmup_steps": 16}, "train": {"iterations": 2}},
            "update.warmup_steps (16) must be below the run's 16 optimiser steps (train.iterations × "
            "update.steps_per_generation × update.num_iterations): update.learning_rate would never be reached",
        ),
        (
            {"update": {"warmup_steps": 12, "lr_scheduler_type": "cosine", "max_steps": 12}},
            "update.warmup_steps (12) must be below update.max_steps (12)",
        ),
        (
            {"update": {"warmup_steps": -1}},
            "update.warmup_steps: Input should be greater than or equal to 0 (it is -1)",
        ),
        (
            {"update": {"lr_scheduler_type": "linear", "max_steps": 0}},
            "update.max_steps: Input should be greater than or equal to 1 (it is 0)",
        ),
        (
            {"update": {"truncated_completions": "drop"}},
            "update.truncated_completions: Input should be 'keep', 'mask', 'penalise' or 'soft_overlong' (it is 'drop')",
        ),
        (
            {"update": {"truncated_completions": "penalise", "truncation_penalty": 0}},
            "update.truncation_penalty: Input should be greater than 0 (it is 0)",
        ),
        (
            {"update": CORRECTED | {"vllm_importance_sampling_mode": "row_mask"}},
            "update.vllm_importance_sampling_mode: Input should be 'token_truncate', 'token_mask', 'sequence_truncate' or",
        ),
        (
            {"update": CORRECTED | {"vllm_importance_sampling_clip_max": 0}},
            "update.vllm_importance_sampling_clip_max: Input should be greater than 0 (it is 0)",
        ),
        (
            {"update": {"tokens_per_micro_batch": 63}},
            "update.tokens_per_micro_batch: Input should be greater than or equal",
        ),
        # wrong types
        ({"rollout": {"attempts": "many"}}, "rollout.attempts: Input should be a valid integer"),
        ({"rollout": {"attempts": 2.5}}, "rollout.attempts: Input should be a valid integer"),
        ({"seed": {"of": 1}}, "seed: Input should be a valid integer (it is {'of': 1})"),
        ({"update": {"beta": {}}}, "update.beta: Input should be a valid number (it is {})"),
        ({"rollout": 8}, "rollout: Input should be a valid dictionary or instance of Rollout (it is 8)"),
        ({"rollout": None}, "rollout: Input should be a valid dictionary or instance of Rollout (it is None)"),
        ({"update": {"learning_rate": [1]}}, "update.learning_rate: Input should be a valid number (it is [1])"),
        ({"task": 3}, "task: Input should be a valid string (it is 3)"),
        ("update: {learning_rate: 2e-3x}", "update.learning_rate: Input should be a valid number"),
        # bad combinations
        (
            {"rollout": {"scenarios": 25}, "scenarios": {"train": 24}},
            "rollout.scenarios (25) is more than scenarios.train (24)",
        ),
        (
            {"update": {"loss_type": "cispo", "epsilon": 0.2}},
            "update.epsilon would have no effect: it is read with loss_type: grpo, dr_grpo, dapo, bnpo, gspo or luspo "
            "alone; take it out",
        ),
        (
            {"update": {"max_steps": 80}},
            "update.max_steps would have no effect: it is read with lr_scheduler_type: linear or cosine alone",
        ),
        (
            {"update": {"lr_scheduler_type": "constant", "warmup_steps": 3, "max_steps": 80}},
            "update.max_steps would have no effect",
        ),
        (
            {"update": {"truncation_penalty": 0.5}},
            "update.truncation_penalty would have no effect: it is read with truncated_completions: penalise or soft",
        ),
        (
            {"update": {"truncated_completions": "mask", "truncation_penalty": 0.5}},
            "update.truncation_penalty would have no effect",
        ),
        (
            {"update": {"vllm_importance_sampling_mode": "token_mask"}},
            "update.vllm_importance_sampling_mode would have no effect: it is read with "
            "vllm_importance_sampling_correction: true alone; take it out",
        ),
        (
            {"update": {"vllm_importance_sampling_correction": False, "vllm_importance_sampling_clip_max": 3}},
            "update.vllm_importance_sampling_clip_max would have no effect",
        ),
        (
            {"update": {"vllm_importance_sampling_clip_min": 0.5}},
            "update.vllm_importance_sampling_clip_min would have no effect",
        ),
        (
            {"update": {"lr_scheduler_type": "linear"}},
            "update.max_steps is needed with lr_scheduler_type: linear (iterations × steps_per_",
        ),
        ({"update": {"lr_scheduler_type": "cosine", "max_steps": None}}, "update.max_steps is needed with"),
        (
            {"rollout": {"curriculum": {"low": 0.95}}},
            "rollout.curriculum.low (0.95) must be less than rollout.curriculum.high (0.9)",
        ),
        (
            {"rollout": {"curriculum": {"widow": 3}}},
            "rollout.curriculum.widow is not a known key (known: high, low)",
        ),
        ({"rollout": {"curriculum": {"floor": 0.2}}}, "rollout.curriculum.floor is not a known key (known: high, low)"),
        ({"scenarios": {"ngram": 8}}, "scenarios.ngram is not a known key (known: "),
        (
            {"score": {"judges": {"criteria": 1}, "criteria": {"tokens_per_second": 50}}},
            "tokens_per_second is not a known",
        ),
        (
            {"policy": {"kind": "server", "servers": {"max_connections": 4}}},
            "policy.servers.max_connections is not a known",
        ),
        ({"scenarios": {"max_overlap": 1.5}}, "scenarios.max_overlap: Input should be less than or equal to 1"),
        # the judges and the advantages of turns
        (
            {"evaluate": {"judge": {"endpoint": {"model": "m"}, "orders": 4}}},
            "evaluate.judge.orders would have no effect: evaluations are judged in both orders",
        ),
        (
            {
                "score": {"judges": {"ruler": 1}, "ruler": {"endpoint": {"model": "m"}}},
                "evaluate": {"judge": {"endpoint": {"model": "m"}}},
            },
            "evaluate.judge is m, which scores the training, too (score.ruler): a judge that is held out must be another",
        ),
        # several tasks
        (
            {"task": "a", "tasks": {"a": 1, "b": 1}},
            "task (a) and tasks (a+b) cannot both be set: take one of the two out",
        ),
        ({"task": "a+b"}, "task: 'a+b' are several tasks: write `tasks: {a: 1, b: 1}` in its place"),
        ({"tasks": {"a": 1}}, "tasks: name two tasks at least, each with its weight; a single one is `task: <name>`"),
        ({"tasks": {"a": 0, "b": 1}}, "tasks: the weights must be whole numbers from 1 on, not 0"),
        ({"tasks": {"a": 0.5, "b": 1}}, "tasks.a: Input should be a valid integer"),
        ({"tasks": {"a": 1, "b; x": 1}}, "tasks: 'b; x' is no name of a task"),
        ({"tasks": ["a", "b"]}, "tasks: Input should be a valid dictionary"),
        (
            {"tasks": {"a": 19, "b": 1}},
            "rollout.scenarios (16) leaves b less than one scenario, by its weight in tasks: raise rollout.scenarios to 20",
        ),
        ({"tasks": {"a": 1, "b": 1}, "scenarios": {"test": 1}}, "scenarios.test (1) leaves a less than one scenario"),
        (
            {"tasks": {"a": 1, "b": 1}, "scenarios": {"train": 15}, "rollout": {"scenarios": 15}},
            "rollout.scenarios (15) takes up to 8 of b, which has 7 of scenarios.train (15): raise scenarios.train",
        ),
        (
            {"tasks": {"a": 1, "b": 1}, "sft": {"demonstrations": ["x"]}},
            "sft speaks of a single task, and does not go with tasks: take one of the two out",
        ),
        ({"tasks": {"a": 1, "b": 1}, "scenarios": {"generated": "x"}}, "scenarios.generated speaks of a single task"),
        ({"tasks": {"a": 1, "b": 1}, "scenarios": {"ingested": {}}}, "scenarios.ingested speaks of a single task"),
        (
            {"tasks": {"a": 1, "b": 1}, "evaluate": {"judge": {"endpoint": {"model": "m"}}}},
            "evaluate.judge speaks of a single task",
        ),
        (
            {
                "tasks": {"a": 1, "b": 1},
                "score": {"judges": {"ruler": 1}, "ruler": {"endpoint": {"model": "m"}}},
            },
            "score.ruler speaks of a single task",
        ),
        # no YAML
        ("rollout: [1", "is not valid YAML: while parsing a flow sequence"),
        ("seed: 1\n\tbad", "is not valid YAML: while scanning"),
        ("- 1\n- 2\n", "must hold keys and values, not a list"),
        ("text", "must hold keys and values, not a str"),
    ],
    ids=lambda value: str(value)[:50] if not isinstance(value, str) else None,
)
def test_a_mistake_is_one_sentence_that_names_the_key(refused: Any, written: str | dict[str, Any], words: str) -> None:
    assert words in refused(written)


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        (None, ("dapo", 0.2, 0.28)),
        ("grpo", ("grpo", 0.2, 0.28)),
        ("dr_grpo", ("dr_grpo", 0.2, 0.28)),
        ("dapo", ("dapo", 0.2, 0.28)),
        ("bnpo", ("bnpo", 0.2, 0.28)),
        ("cispo", ("cispo", None, 5.0)),
        ("gspo", ("gspo", 3e-4, 4e-4)),
    ],
)
def test_a_loss_brings_its_own_clipping(loss_type: str | None, expected: tuple[Any, ...]) -> None:
    settings = {} if loss_type is None else {"loss_type": loss_type}
    update = Update.model_validate(settings)
    assert (update.loss_type, update.epsilon, update.epsilon_high) == expected
    assert Update.model_validate(settings | {"epsilon_high": 0.7}).epsilon_high == 0.7
    if loss_type != "cispo":
        assert Update.model_validate(settings | {"epsilon": 0.1, "epsilon_high": None}).epsilon == 0.1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"max_steps": None, "truncation_penalty": None, "vllm_importance_sampling_mode": None}),
        ({"truncated_completions": "penalise"}, {"truncation_penalty": 0.5}),
        ({"truncated_completions": "penalise", "truncation_penalty": 0.1}, {"truncation_penalty": 0.1}),
        ({"truncated_completions": "mask"}, {"truncation_penalty": None}),
        ({"lr_scheduler_type": "cosine", "max_steps": 80}, {"max_steps": 80, "warmup_steps": 0}),
        (
            CORRECTED,
            {
                "vllm_importance_sampling_mode": "sequence_mask",
                "vllm_importance_sampling_clip_max": 3.0,
                "vllm_importance_sampling_clip_min": None,
            },
        ),
        (
            CORRECTED | {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_min": 0.5},
            {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_min": 0.5},
        ),
    ],
    ids=str,
)
def test_a_choice_brings_the_defaults_of_what_it_reads(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    update = Update.model_validate(settings)
    assert {name: getattr(update, name) for name in expected} == expected


@pytest.mark.parametrize(
    "settings",
    [{}, CORRECTED, {"loss_type": "cispo"}, {"loss_type": "gspo"}, {"lr_scheduler_type": "linear", "max_steps": 8}],
    ids=str,
)
def test_an_update_written_out_in_full_is_the_same_update(settings: dict[str, Any]) -> None:
    """Defaults filled in must not be refused as knobs without effect when they come back from a file."""
    update = Update.model_validate(settings)
    assert Update.model_validate(update.model_dump()) == update
    assert Update.model_validate_json(update.model_dump_json()) == update


def test_all_mistakes_are_named_at_once(refused: Any) -> None:
    text = refused({"seed": -1, "rollout": {"attempts": 0, "speed": 1}, "update": {"beta": -1}})
    assert [part.split(" ")[0].rstrip(":") for part in text.split("; ")] == [
        "seed",
        "rollout.attempts",
        "rollout.speed",
        "update.beta",
    ]


def test_as_many_scenarios_as_there_are_is_fine(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("rollout: {scenarios: 24}\nscenarios: {train: 24}\n")
    assert load(tmp_path / "params.yaml", Params).rollout.scenarios == 24


def test_a_missing_file_says_where_to_run(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(UserError, match="does not exist: run from the project's root, or name a file with --params"):
        load(path, Params)


def test_exponents_without_a_dot_are_numbers(tmp_path: Path) -> None:
    """YAML 1.1 reads 2e-3 as a text; it must not be refused or taken for another number."""
    (tmp_path / "params.yaml").write_text("update: {learning_rate: 2e-3}\n")
    assert load(tmp_path / "params.yaml", Params).update.learning_rate == 0.002


def test_every_field_says_what_it_is() -> None:
    """A text stands under each field of a section."""
    silent = []
    files = [path for path in sorted(ROOT.glob("steps/core/params_*.py")) if path.stem != "params_tasks"]
    texts = [path.read_text() for path in [*files, *sorted(ROOT.glob("addons/*/section.py"))]]
    assert len(texts) == 21
    for section in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(section, ast.ClassDef):
            assert ast.get_docstring(section), section.name
            for field, text in zip(section.body, [*section.body[1:], None], strict=True):
                is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                if isinstance(field, ast.AnnAssign) and not is_text:
                    silent.append(f"{section.name}.{ast.unparse(field.target)}")
    assert silent == []


def test_a_text_is_checked_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    assert parse("seed: 7\n", path, RolloutParams).seed == 7
    with pytest.raises(UserError) as problem:
        parse("seed: -1\n", path, RolloutParams)
    assert str(problem.value) == f"{path}: seed: Input should be greater than or equal to 0 (it is -1)"
    assert not path.exists()


def test_sections_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Params().rollout.attempts = 3  # pyrefly: ignore[read-only]


def test_presets_are_whole_and_the_default_tasks_is_params_yaml() -> None:
    presets = {path.stem: path for path in (ROOT / "tasks_data").glob("*.yaml")}
    assert presets["email_search"].read_text() == (ROOT / "params.yaml").read_text()
    for task, path in presets.items():
        assert load(path, Params).task == task
        assert set(yaml.safe_load(path.read_text())) == {
            field.alias or name
            for name, field in Params.model_fields.items()
            if name not in ("promote", "serve", "sft", "task" if "+" in task else "tasks")
        }  # which no stage of dvc.yaml reads, or one that is there only with it
        assert (ROOT / "tasks_data" / task).is_dir()
        assert all((ROOT / "environments" / name / "__init__.py").is_file() for name in task.split("+"))


START = {"policy": {"start_from": "run:nightly/003"}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"policy": {"start_optimizer": True}},
            "policy.start_optimizer would have no effect without policy.start_from",
        ),
        (
            {"policy": {"start_from": "models:/email_search"}},
            "is no version of a registered model: write models:/<name>@",
        ),
        ({"policy": {"start_from": "run:nightly/3"}}, "is no iteration of a run: write run:<name>/<three digits>"),
        ({"policy": {"start_from": "models:/a/3", "start_optimizer": True}}, "a registered version holds no optimiser"),
        (
            {"policy": {"start_from": "x", "kind": "scripted"}},
            "policy.start_from would have no effect with policy.kind",
        ),
        (
            {"update": {"reference": "start"}},
            "update.reference: start would have no effect without policy.start_from or",
        ),
        (
            START | {"update": {"reference": "start", "beta": 0}},
            "update.reference would have no effect: it is read with",
        ),
        ({"sft": {}}, "sft needs demonstrations"),
        ({"sft": {"demonstrations": ["a"], "min_reward": 1}}, "sft.min_reward would have no effect"),
        (
            {"policy": {"start_from": "run:a/001", "start_optimizer": True}, "sft": {"demonstrations": ["a"]}},
            "policy.start_optimizer would have no effect with sft",
        ),
    ],
)
def test_a_start_that_nothing_would_read_is_refused(refused: Any, changes: dict[str, Any], words: str) -> None:
    assert words in refused(changes)


@pytest.mark.parametrize(
    "address",
    ["models:/email_search@champion", "models:/a/12", "run:nightly", "run:a.b-c/003", "run/003/adapter", "me/a"],
)
def test_a_start_is_one_of_four_addresses(address: str) -> None:
    whole = Params.model_validate({"policy": {"start_from": address}, "update": {"reference": "start"}})
    assert Started.of(whole.policy).start_from == address
    assert Sft(from_runs=("a",)).min_reward == 1.0


def test_the_registry_entry_has_the_tasks_name_unless_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    for text, name in (
        ("task: mine.toys\n", "toys"),
        ("task: a\nregister: {name: b}\n", "b"),
        ("seed: 1\n", "email_search"),
    ):
        path.write_text(text)
        assert load(path, RegisterParams).model == name


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        (
            {"update": {"processes": 2}},
            "update.processes: 2 needs update.launcher: accelerate or ray, which starts them",
        ),
        ({"update": {"shard": True}}, "update.shard would have no effect"),
        ({"update": {"launcher": "torchrun"}}, "update.launcher: "),
        (
            {"policy": {"cluster": "auto"}},
            "policy.cluster would have no effect with policy.kind: vllm and",
        ),
        ({"policy": {"cluster": "somewhere"}, "update": {"launcher": "ray"}}, "policy.cluster: "),
        (
            {
                "update": {"launcher": "accelerate", "processes": 2, "shard": True},
                "policy": {"quantization": "bnb-4bit"},
            },
            "update.shard does not work with policy.quantization: bnb-4bit",
        ),
        ({"policy": {"quantization": "awq"}}, "policy.quantization: "),
        (
            {"policy": {"rollout_quantization": "fp8"}},
            "policy.rollout_quantization: fp8 needs policy.dtype: bfloat16, and it is float32; take it out",
        ),
        (
            {"policy": {"rollout_quantization": "fp8", "quantization": "bnb-4bit", "dtype": "bfloat16"}},
            "policy.rollout_quantization: fp8 does not go with policy.quantization: bnb-4bit",
        ),
        (
            {"policy": {"rollout_quantization": "fp8", "kind": "random"}},
            "policy.rollout_quantization: fp8 would have no effect with policy.kind: random",
        ),
        (
            {
                "policy": {"rollout_quantization": "fp8", "dtype": "bfloat16"},
                "update": {"vllm_importance_sampling_correction": False},
            },
            "update.vllm_importance_sampling_correction: false does not go with policy.rollout_quantization: fp8",
        ),
        ({"policy": {"tensor_parallel": 0}}, "policy.tensor_parallel: "),
        (
            {"policy": {"share_weights": True, "kind": "ray"}},
            "policy.share_weights does not go with policy.kind: ray",
        ),
        (
            {"policy": {"share_weights": True, "kind": "server", "servers": {}}},
            "policy.share_weights does not go with policy.kind: server",
        ),
        (
            {"policy": {"share_weights": True, "tensor_parallel": 2}},
            "policy.share_weights does not go with policy.tensor_parallel: 2",
        ),
        (
            {"policy": {"share_weights": True, "quantization": "bnb-4bit"}},
            "policy.share_weights does not go with policy.quantization: bnb-4bit",
        ),
        (
            {
                "policy": {"share_weights": True},
                "update": {"launcher": "accelerate", "processes": 2, "shard": True},
            },
            "policy.share_weights does not go with update.launcher: accelerate and update.processes: 2",
        ),
        (
            {"policy": {"share_weights": True}, "update": {"launcher": "ray"}},
            "policy.share_weights does not go with update.launcher: ray and update.processes: 1",
        ),
    ],
)
def test_several_processes_and_cards_that_do_not_go_together(
    refused: Any, sections: dict[str, Any], problem: str
) -> None:
    assert problem in refused(sections)


def test_a_batch_that_an_older_adapter_sampled_is_corrected(refused: Any) -> None:
    """By default with weights of tokens; a choice of one's own stays. The correction cannot be off beside an overlap."""
    update = Params.model_validate({"train": {"overlap": 1}}).update
    terms = Terms.of(update)
    assert (
        terms.vllm_importance_sampling_correction is None
    )  # each batch decides: those of the first iterations are new
    lagging = Terms.of(update.lagging())
    assert (lagging.vllm_importance_sampling_correction, lagging.vllm_importance_sampling_mode) == (
        True,
        "token_truncate",
    )
    assert lagging.vllm_importance_sampling_clip_max == 3.0
    assert (
        lagging.model_copy(
            update={f"vllm_importance_sampling_{name}": None for name in ("correction", "mode", "clip_max")}
        )
        == update
    )
    chosen = Update.model_validate(CORRECTED | {"vllm_importance_sampling_clip_max": 2.0})
    assert chosen.lagging() is chosen
    off = {"update": {"vllm_importance_sampling_correction": False}}
    assert "does not go with train.overlap: 2" in refused(off | {"train": {"overlap": 2}})
    assert "train.overlap: Input should be less than or equal to 4" in refused({"train": {"overlap": 5}})


def test_the_dtype_decides_what_rounding_may_do() -> None:
    for dtype, corrected, mode, limits in (
        ("float32", None, None, (1e-3, 1e-3)),  # off, but for batches that an older adapter sampled
        ("bfloat16", True, "token_truncate", (1e-3, 6e-3)),
    ):
        update = Params.model_validate({"policy": {"dtype": dtype}}).update
        assert Terms.of(update).vllm_importance_sampling_correction == corrected
        assert Terms.of(update).vllm_importance_sampling_mode == mode
        assert tuple(update.sampler_limit(layers) for layers in (2, 30)) == pytest.approx(limits)
        assert update.of_dtype(dtype) == update
    policy = {"dtype": "bfloat16"}
    chosen = {"vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_max": None}
    update = Params.model_validate({"policy": policy, "update": chosen | {"max_sampler_kl": 0.1}}).update
    terms = Terms.of(update)
    assert (terms.vllm_importance_sampling_mode, terms.vllm_importance_sampling_clip_max) == ("sequence_mask", None)
    assert update.sampler_limit(30) == 0.1
    off = {"vllm_importance_sampling_correction": False}
    uncorrected = Terms.of(Params.model_validate({"policy": policy, "update": off}).update)
    assert not uncorrected.vllm_importance_sampling_correction
    with pytest.raises(ValueError, match="vllm_importance_sampling_mode would have no effect"):
        Params.model_validate({"update": {"vllm_importance_sampling_mode": "token_mask"}})


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"kind": "server"}, "policy.servers is needed with policy.kind: server"),
        ({"servers": {}}, "policy.servers would have no effect without policy.kind: server"),
        (
            {"kind": "server", "servers": {"urls": ["http://me:word@host:8000"]}},
            "policy.servers.urls must be http(s)://",
        ),
        ({"kind": "server", "servers": {"urls": ["http://host:8000/v1"]}}, "policy.servers.urls must be http(s)://"),
        ({"kind": "server", "servers": {"key_env": "sk-1234"}}, "key_env must be the name of an environment variable"),
        ({"kind": "server", "servers": {"adapters": "here"}}, "policy.servers.adapters must be an absolute path"),
    ],
)
def test_servers_that_do_not_go_together(refused: Any, policy: dict[str, Any], problem: str) -> None:
    sentence = refused({"policy": policy})
    assert problem in sentence
    assert "sk-1234" not in sentence
    assert "word" not in sentence


def test_servers_need_no_shards(refused: Any) -> None:
    policy = {"kind": "server", "servers": {}}
    assert "rollout.shards would have no effect with policy.kind: server" in refused(
        {"policy": policy, "rollout": {"shards": 2}}
    )
    assert Params.model_validate({"policy": policy}).policy.has_adapter


def test_several_tasks_have_one_name_whatever_their_order() -> None:
    params = Params.model_validate({"tasks": {"my_team.tic": 1, "email_search": 2}})
    assert params.task == "email_search+my_team.tic"
    assert Params.model_validate(params.model_dump(by_alias=True)) == params, "what is written can be read again"
    shown = {"task": params.task, "tasks": params.tasks, "policy": params.policy, "register": params.register_}
    assert RegisterParams.model_validate(shown).model == "email_search+tic"
