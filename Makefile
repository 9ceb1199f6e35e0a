# `make help` lists the targets. What is needed beforehand, requirements/system checks; where Python is not 3.11 to 3.13, uv
# brings one.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# A Python 3.11 to 3.13 with venv; left empty, requirements/python finds or fetches one.
PYTHON ?=
# One run's task, and further arguments: make train TASK=email_search ARGS="--dry-run"
TASK ?=
# A model's settings on top of the task's: make train PRESET=smollm2
PRESET ?=
ARGS ?=
MLFLOW_PORT ?= 5000
PREFECT_PORT ?= 4200
VIEW_PORT ?= 8600
# For gpu-check: a Python with torch, transformers, accelerate and peft, and the folder of what it lacks (dill pickles what does
# not lie in a folder of this name by value, and fails).
GPU_PYTHON ?= .venv/bin/python
GPU_SITE ?= .flywheel/gpu/site-packages
GPU_VERSION ?= $(shell $(GPU_PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
OUT ?=
TOY ?=
# For gpu-stack: versions that a machine with a GPU has, what gpu-site's packages import of others, and a Python for them.
GPU_STACK ?= 'torch==2.11.*' transformers==5.17.0 'peft==0.21.*' accelerate pandas pyarrow xxhash
STACK_PYTHON ?= 3.12

# An add-on's targets are in its folder. There it also says what else the core's targets do: variables that may be given
# (KNOWN_TO_ADDONS), options of the doctor (DOCTOR), modules that are run after `make new-mcp` with the task's name (AFTER_MCP).
HERE := $(dir $(lastword $(MAKEFILE_LIST)))
-include $(sort $(wildcard $(HERE)addons/*/targets.mk))

# Make ignores what it does not know: task=x would train another task. All names of variables are in capitals.
KNOWN := TASK PRESET ARGS NAME COMMAND GPU DEV OUT TOY PYTHON MLFLOW_PORT PREFECT_PORT VIEW_PORT FUZZ_INPUTS $(KNOWN_TO_ADDONS)
GIVEN := $(foreach given,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(given)))),$(given)))
$(foreach given,$(filter-out $(KNOWN),$(GIVEN)),$(foreach right,$(filter $(KNOWN),$(shell tr a-z A-Z <<< '$(given)')),\
	$(error there is no variable $(given), which would be ignored: write $(right)=$($(given)))))

# GPU=1 takes the lock for the `vllm` package and CUDA builds. The environment remembers it; GPU=0 goes back.
GPU ?= $(if $(wildcard .venv/.gpu),1,0)
# DEV=1 adds what checks and tests need. The environment remembers that too; DEV=0 takes it out again.
DEV ?= $(if $(wildcard .venv/.dev),1,0)
LOCK := requirements/$(if $(filter 1,$(GPU)),gpu,cpu).txt
LOCKS := $(LOCK) $(if $(filter 1,$(DEV)),requirements/dev.txt)
UV_VERSION = $(shell sed -n 's/^uv==//p' $(LOCK))

# The CPU build of torch is in no general registry. It is taken from a find-links folder where pip knows of one (uv does
# not read pip's variable), and from PyTorch's own CPU index elsewhere.
comma := ,
space := $(subst ,, )
FIND_LINKS := $(strip $(PIP_FIND_LINKS) $(subst $(comma),$(space),$(UV_FIND_LINKS)))
# The environment's Python as wheels name it, such as cp312.
TAG = $(shell .venv/bin/python -c 'import sys; print("cp%d%d" % sys.version_info[:2])' 2>/dev/null)
TORCH_WHEEL = $(wildcard $(addsuffix /torch-*+cpu-$(TAG)-*.whl,$(patsubst file://%,%,$(FIND_LINKS))))
CPU_TORCH = $(if $(TORCH_WHEEL),--find-links $(subst $(space), --find-links ,$(FIND_LINKS)),--torch-backend cpu)
TORCH = $(if $(filter 1,$(GPU)),,$(CPU_TORCH))
TORCH_FROM = $(if $(filter 1,$(GPU)),CUDA build,$(if $(TORCH_WHEEL),from $(firstword $(TORCH_WHEEL)),from the PyTorch CPU index))

# What docs/install.md has measured.
SIZE := $(if $(filter 1,$(GPU)),a CUDA build takes several times the 3 GB of one for the CPU,.venv takes about $(if $(filter 1,$(DEV)),3.8,2.8) GB)

# The environment is up to date if it holds a file named after the hash of the locks, its Python and its folder.
STAMP = .venv/.installed-$$({ cat $(LOCKS); echo "$(CURDIR)"; .venv/bin/python --version; } 2>&1 | sha256sum | cut -c 1-16)
# `python` in the commands of dvc.yaml is the environment's.
RUN := PATH="$(CURDIR)/.venv/bin:$$PATH" VIRTUAL_ENV="$(CURDIR)/.venv"
# A mirror that pip is told of is uv's too.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
UV := UV_FIND_LINKS= VIRTUAL_ENV="$(CURDIR)/.venv" .venv/bin/uv --quiet

# All state is in the project. Each service gets an absolute path, because each would otherwise choose its own.
STATE := $(CURDIR)/.flywheel
export PREFECT_HOME ?= $(STATE)/prefect
export PREFECT_LOCAL_STORAGE_PATH ?= $(PREFECT_HOME)/storage
export PREFECT_MEMO_STORE_PATH ?= $(PREFECT_HOME)/memo_store.toml
export PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS ?= 120

ALL_TASKS := $(sort $(filter-out base kit bridges,$(notdir $(subst /__init__,,$(basename \
	$(wildcard environments/[a-z]*.py environments/[a-z]*/__init__.py))))))

ALL_PRESETS := $(notdir $(basename $(wildcard tasks_data/_models/*.yaml)))
# The nearest of the names $(2) to $(1), as a question; a full stop where none is near, or where there is no Python yet.
near = $(PYTHON) -c 'import difflib, sys; print("; did you mean %s?" % difflib.get_close_matches(sys.argv[1], sys.argv[2:])[0])' \
	'$(1)' $(2) 2>/dev/null || echo .

# A home that cannot be written, as in some containers: caches and settings of tools are kept in the project, too.
ifneq ($(shell mkdir -p "$${XDG_CACHE_HOME:-$$HOME/.cache}" 2>/dev/null && [ -w "$${XDG_CACHE_HOME:-$$HOME/.cache}" ] && echo yes),yes)
export XDG_CACHE_HOME := $(STATE)/cache
export XDG_CONFIG_HOME := $(STATE)/config
endif

# Without bytecode every process spends 17 s instead of 8 s on imports.
unexport PYTHONDONTWRITEBYTECODE

# No telemetry is sent.
export DO_NOT_TRACK := 1
export DVC_NO_ANALYTICS := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export MLFLOW_DISABLE_TELEMETRY := true
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export VLLM_DO_NOT_TRACK := 1
export VLLM_NO_USAGE_STATS := 1

.PHONY: $(shell sed -n 's/^\([a-z-]*\):\([^=].*\)*$$/\1/p' $(MAKEFILE_LIST))

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target what; do \
		printf '  make %-11s %s\n' "$$target" "$$what"; done
	@echo "Tasks (make train TASK=name): $(ALL_TASKS)"

install: needed  ## set up .venv from the lock files (GPU=1: for CUDA; DEV=1: with the packages for tests)
	@if [ -e "$(STAMP)" ]; then echo "environment: .venv is up to date with $(strip $(LOCKS))"; else $(MAKE) environment GPU=$(GPU) DEV=$(DEV); fi

dev:
	@$(MAKE) install DEV=1

# The recipe of `environment` asks the environment for its Python, so that this one comes first.
venv:
	@[ "$$(uname -s)-$$(uname -m)" = Linux-x86_64 ] || { \
		echo "The lock files are for Linux on x86-64, and this is $$(uname -s) on $$(uname -m): docs/install.md says what works elsewhere (WSL2 on Windows, a container on a Mac)." >&2; exit 1; }
	@[ "$(GPU)" != 1 ] || [ -e "$(HERE)addons/gpu" ] || { \
		echo "An environment for GPUs needs the add-on gpu, which addons/ does not have: 'make install GPU=0' makes one for CPUs." >&2; exit 1; }
	@[ ! -L .venv ] || { \
		echo ".venv is a symbolic link to $$(readlink .venv), whose packages this would replace: remove the link (rm .venv) and 'make install' makes an environment here." >&2; exit 1; }
	@usable() { .venv/bin/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
			&& grep -qsF '"$(CURDIR)/.venv"' .venv/bin/activate && .venv/bin/python -m pip --version >/dev/null 2>&1; }; \
	if ! usable || [ "$(GPU)" != "$$([ -e .venv/.gpu ] && echo 1 || echo 0)" ]; then \
		python="$(PYTHON)"; [ -n "$$python" ] || python=$$(requirements/python "$(UV_VERSION)") || { \
			echo "Python 3.11 to 3.13 with venv is needed, and there is none that uv could find or fetch: install python3.12 and python3.12-venv, or name one, as in 'make install PYTHON=/path/to/python3.12'." >&2; exit 1; }; \
		"$$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 || { \
			echo "Python 3.11 to 3.13 with venv is needed and '$$python' is not it: name another, or leave PYTHON out, and uv brings one." >&2; exit 1; }; \
		echo "environment: creating .venv with $$("$$python" --version)"; \
		"$$python" -m venv --clear .venv; \
		if [ "$(GPU)" = 1 ]; then touch .venv/.gpu; fi; \
	fi

environment: venv
	@rm -f .venv/.installed-* .venv/.dev
	@if [ "$(DEV)" = 1 ]; then touch .venv/.dev; fi
	@if [ "$$(.venv/bin/uv --version 2>/dev/null | cut -d ' ' -f 2)" != "$(UV_VERSION)" ]; then \
		echo "environment: installing uv $(UV_VERSION)"; \
		.venv/bin/python -m pip install -qq --disable-pip-version-check "uv==$(UV_VERSION)"; \
	fi
	@echo "environment: installing the packages of $(strip $(LOCKS)) (torch: $(TORCH_FROM)); $(SIZE), and uv's cache keeps the downloads; free here: $$(df -Ph . | awk 'NR == 2 {print $$4}')"
	@$(UV) pip sync $(TORCH) $(LOCKS) || { echo "The packages of $(strip $(LOCKS)) could not be installed: see the line above; 'make install' goes on from here." >&2; exit 1; }
	@mkdir -p .flywheel/dvc && mkdir -p -m 700 .flywheel/dvc/repo
	@touch "$(STAMP)"
	@echo "environment: ready"
	@if [ "$(GPU)" = 1 ]; then $(RUN) python -m addons.gpu.device; fi

SYSTEM := $(HERE)requirements/system
needed:
	@PYTHON="$(PYTHON)" $(SYSTEM) "$(GPU)" "$(DEV)"

# What would otherwise fail only after the installation.
ready:
	@[ -e .git ] || { \
		echo "This folder is no git repository (a ZIP download is none), and DVC needs one: 'git init && git add --all && git commit --message start', then the same command again." >&2; exit 1; }
	@case "$(TASK)" in ''|*[.+:]*) ;; *) [ -e "environments/$(TASK).py" ] || [ -e "environments/$(TASK)/__init__.py" ] || { \
		echo "There is no task $(TASK)$$($(call near,$(TASK),$(ALL_TASKS))) The tasks are $(ALL_TASKS); 'make new-task NAME=$(TASK)' makes it." >&2; exit 1; };; esac
	@[ -z "$(PRESET)" ] || [ -e "tasks_data/_models/$(PRESET).yaml" ] || { \
		echo "There is no preset $(PRESET)$$($(call near,$(PRESET),$(ALL_PRESETS))) The models with a preset are $(ALL_PRESETS)." >&2; exit 1; }

train: ready install  ## train an agent, evaluate it, register the best adapter (TASK=name, PRESET=smollm2, ARGS="--set seed=2")
	@mkdir -p "$(PREFECT_HOME)"
	@$(RUN) python -m flows.train $(if $(TASK),--task $(TASK)) $(if $(PRESET),--preset $(PRESET)) $(ARGS)

new-task: install  ## write a small working task to edit (NAME=my_task)
	@[ -n "$(NAME)" ] || { echo "Name the new task, as in 'make new-task NAME=my_task'." >&2; exit 2; }
	@$(RUN) python -m environments._new "$(NAME)"

new-agent: install  ## write a small working agent of your own to edit, with a test (NAME=my_agent)
	@[ -n "$(NAME)" ] || { echo "Name the new agent, as in 'make new-agent NAME=my_agent'." >&2; exit 2; }
	@$(RUN) python -m environments._new "$(NAME)" --agent

new-mcp: install  ## write a task with an MCP server's tools (NAME=notes COMMAND="uvx mcp-server-notes" or an address)
	@[ -n "$(COMMAND)" ] || { echo "Say how the server is started, as in 'make new-mcp NAME=notes COMMAND=\"uvx mcp-server-notes\"'." >&2; exit 2; }
	@$(RUN) python -m environments._new "$(or $(NAME),mcp)" --mcp '$(COMMAND)'
	@for module in $(AFTER_MCP); do $(RUN) python -m $$module "$(or $(NAME),mcp)"; done

new-harness: install  ## write scenarios for a coding agent that people run (HARNESS=claude-code, codex …; NAME=reviews: further ones)
	@[ -n "$(HARNESS)" ] || { echo "Name the harness, as in 'make new-harness HARNESS=claude-code'; docs/harnesses.md lists them." >&2; exit 2; }
	@$(RUN) python -m environments._new $(NAME) --harness "$(HARNESS)"

check-task: dev  ## test a task or an agent by the rules for every task, and by a test of its own (NAME=my_task, or a dotted module)
	@[ -n "$(NAME)" ] || { echo "Name the task, as in 'make check-task NAME=my_task'." >&2; exit 2; }
	@$(RUN) python -m pytest -q tests/environments/test_environments.py $(wildcard tests/environments/test_$(NAME).py) --task "$(NAME)" $(ARGS)

# What tests import is compiled while types are checked: all processes of the tests would do it otherwise.
# By a variable of its own, because a line that names MAKE itself is run by `make --dry-run`, too.
# Three processes on two cores, because tests wait for a quarter of their time. Four are no faster.
CHECK = $(MAKE) --no-print-directory check
test: dev  ## run make check and all tests (ARGS="-k name")
	@$(RUN) python -m pytest --collect-only -qq >/dev/null 2>&1 & compiling=$$!; \
	$(CHECK) || { kill $$compiling 2>/dev/null; exit 1; }; wait $$compiling || true
	@echo "test: pytest"
	@OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0 TOKENIZERS_PARALLELISM=false $(RUN) python -m pytest -n 3 $(ARGS)

# Each part runs whether or not another fails. Like CHECK, BY_NIGHT does not name MAKE in a line of its own.
BY_NIGHT = $(MAKE) --no-print-directory
nightly: dev  ## what make test leaves out: tests/NIGHTLY.md, make faults, make fuzz; hours (ARGS="-k name": of the tests alone)
	@failed=; OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0 TOKENIZERS_PARALLELISM=false $(RUN) python -m pytest -n 2 -m nightly $(ARGS) || failed=1; \
	$(if $(ARGS),,$(BY_NIGHT) faults || failed=1; $(BY_NIGHT) fuzz || failed=1;) [ -z "$$failed" ]

coverage: dev  ## say which lines and branches of the product tests reach (ARGS="tests/judging": some tests alone)
	@rm -rf .flywheel/coverage
	@failed=; OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0 TOKENIZERS_PARALLELISM=false $(RUN) python -m coverage run -m pytest -n 2 $(ARGS) || failed=1; \
	$(RUN) python -m coverage combine --quiet && $(RUN) python -m coverage html --quiet && \
		$(RUN) python -m coverage report --skip-covered && [ -z "$$failed" ]

faults: dev  ## test every fault of tests/faults/README.md, DVC stopped at 600 places, and random kills of real runs
	@OMP_WAIT_POLICY=passive $(RUN) python -m tests.faults.test_table
	@$(RUN) python -m tests.support.interrupted --points 300
	@$(RUN) python -m tests.support.swaps
	@$(RUN) python -m tests.support.kills $(ARGS)

fuzz: dev  ## give each parser 10,000 inputs, and each operation of our servers 1,000 requests (FUZZ_INPUTS=2000, ARGS="-k parquet"); hours
	@FUZZ_INPUTS="$(or $(FUZZ_INPUTS),10000)" OMP_WAIT_POLICY=passive $(RUN) python -m pytest -n 2 tests/fuzz \
		tests/addons/agents/gateway/test_process.py::test_schemathesis_finds_nothing $(ARGS)

bench: dev  ## run the quick form of every benchmark and write one table (ARGS="gate judge")
	@$(RUN) python -m benchmarks $(ARGS)

OWN_PYTHON := $(filter .venv/%,$(GPU_PYTHON))
gpu-check: $(if $(OWN_PYTHON),install)  ## measure the update on a GPU, without vLLM (GPU_PYTHON=python3; OUT=folder; TOY=1: on the CPU)
	@$(if $(OWN_PYTHON),,PYTHONPATH="$(GPU_SITE)") "$(GPU_PYTHON)" -m benchmarks.gpu $(if $(TOY),--toy) $(if $(OUT),--out "$(OUT)") $(ARGS)

# A uv without an environment: that of .venv, the one on PATH, or one that any Python 3 puts into .flywheel/uv.
OWN_UV := .flywheel/uv/bin/uv
ANY_UV := $(or $(wildcard .venv/bin/uv),$(shell command -v uv),$(OWN_UV))
FOR_GPU = UV_FIND_LINKS= $(ANY_UV) --quiet pip install --no-deps --only-binary :all: --link-mode copy --python-version "$(GPU_VERSION)"
HAS_VERSION = [ -n "$(GPU_VERSION)" ] || { echo "Say for which Python, as in 'make $@ GPU_VERSION=3.12'." >&2; exit 2; }
$(OWN_UV):
	@{ python3 -m venv .flywheel/uv && .flywheel/uv/bin/python -m pip install -qq "uv==$(UV_VERSION)"; } >/dev/null 2>&1 \
		|| python3 -m pip install -qq --upgrade --target .flywheel/uv "uv==$(UV_VERSION)"

# Parts of its packages that gpu-check does not import.
GPU_UNUSED := bin */tests pydantic/v1 pydantic/mypy.py pydantic_core-*/sboms trl/experimental/*/
gpu-site: $(filter $(OWN_UV),$(ANY_UV))  ## put what gpu-check needs beside torch into .flywheel/gpu (GPU_VERSION=3.12: for that Python)
	@$(HAS_VERSION)
	@rm -rf "$(GPU_SITE)"
	@$(FOR_GPU) --target "$(GPU_SITE)" --python-platform x86_64-unknown-linux-gnu \
		$$(grep -oE '^(annotated-types|datasets|dill|multiprocess|pydantic|pydantic-core|trl|typing-extensions|typing-inspection)==[^ ;]+' requirements/cpu.txt)
	@cd "$(GPU_SITE)" && rm -rf $(GPU_UNUSED)
	@echo "gpu-site: $(GPU_SITE), for Python $(GPU_VERSION): $$(du -sm "$(GPU_SITE)" | cut -f 1) MiB"

# What a machine with a GPU and no network needs of this repository, for `git sparse-checkout set --no-cone --stdin` or `tar -T -`.
gpu-sparse:  ## list the files that gpu-check and gpu-train need, for a machine that gets no more (git sparse-checkout, tar -T)
	@files=$$(git ls-files -- Makefile params.yaml addons benchmarks environments flows requirements steps tasks_data/email_search \
		tasks_data/embedded_policy tasks_data/json_records tasks_data/json_records.yaml ':!*.png' ':!*.safetensors' ':!benchmarks/*.jsonl'); echo "$$files"; \
	tr '\n' '\0' <<< "$$files" | du -cb --files0-from=- | awk 'END {printf "gpu-sparse: %.1f MiB\n", $$1 / 2^20}' >&2

STACK_WHEEL := $(wildcard $(addsuffix /torch-2.11*+cpu-cp312*.whl,$(patsubst file://%,%,$(FIND_LINKS))))
STACK_TORCH := $(if $(STACK_WHEEL),--find-links $(subst $(space), --find-links ,$(FIND_LINKS)),--torch-backend cpu)
gpu-stack: $(filter $(OWN_UV),$(ANY_UV))  ## run gpu-check at toy size on the CPU with Python 3.12 and the versions in GPU_STACK
	@$(ANY_UV) --quiet venv --clear --python "$(STACK_PYTHON)" .flywheel/gpu-stack
	@install="$(ANY_UV) --quiet pip install --python .flywheel/gpu-stack/bin/python"; \
	UV_FIND_LINKS= $$install $(STACK_TORCH) $(GPU_STACK) 2>/dev/null || { \
		echo "gpu-stack: there is no CPU build of these to be had, so the one for CUDA is installed (5 GB)"; \
		UV_FIND_LINKS= $$install $(GPU_STACK); }
	@$(MAKE) gpu-site GPU_VERSION=3.12 GPU_SITE=.flywheel/gpu-stack/gpu/site-packages
	@$(MAKE) gpu-check GPU_PYTHON=.flywheel/gpu-stack/bin/python GPU_SITE=.flywheel/gpu-stack/gpu/site-packages TOY=1

gpu-engine: install  ## have vLLM's CUDA build check the engine's arguments, without a GPU (9 GB of packages)
	@.venv/bin/uv --quiet venv --clear --python .venv/bin/python .flywheel/gpu-engine
	@UV_FIND_LINKS= VIRTUAL_ENV="$(CURDIR)/.flywheel/gpu-engine" .venv/bin/uv --quiet pip sync requirements/gpu.txt || { \
		echo "gpu-engine: skipped, because the packages of requirements/gpu.txt cannot be had here"; exit 0; }; \
	VLLM_LOGGING_LEVEL=ERROR PYTHONPATH=. .flywheel/gpu-engine/bin/python -m benchmarks.gpu.engine_config

# The newest vLLM for torch 2.11, and what its engine imports beside packages that such a machine has (pillow, requests, uvloop …).
VLLM := vllm==0.26.0 openai-harmony==0.0.8
VLLM_BESIDE := annotated-types apache-tvm-ffi blake3 cachetools cbor2 compressed-tensors depyf fastapi httpcore2 httpx2 lark llguidance msgspec \
	openai partial-json-parser pybase64 pydantic pydantic-core pyzmq setproctitle sniffio starlette truststore typing-extensions typing-inspection xgrammar
gpu-wheels: $(filter $(OWN_UV),$(ANY_UV))  ## prepare vLLM for a machine with a GPU and no network, in pieces of at most 45 MiB (GPU_VERSION=3.12)
	@$(HAS_VERSION)
	@rm -rf .flywheel/gpu-wheels
	@$(FOR_GPU) --target .flywheel/gpu-wheels/site-packages --python-platform x86_64-manylinux_2_35 $(VLLM) \
		$$(grep -oE '^($(subst $(space),|,$(strip $(VLLM_BESIDE))))==[^ ;]+' requirements/gpu.txt)
	@$(firstword $(wildcard .venv/bin/python) python3) -m benchmarks.gpu.wheels pack .flywheel/gpu-wheels $(ARGS)

gpu-train: install  ## two iterations with a random model of 0.6 B parameters on a GPU, by vLLM (OUT=folder; TOY=1: on the CPU)
	@$(RUN) python -m benchmarks.gpu.train $(if $(TOY),--toy) $(if $(OUT),--out "$(OUT)") $(ARGS)

check: dev  ## check lint, formatting and types
	@echo "check: ruff, pyrefly"
	@$(RUN) ruff check --quiet --output-format concise .
	@$(RUN) ruff format --check --quiet . || { echo "Some files are not formatted: run 'make format'." >&2; exit 1; }
	@$(RUN) PYREFLY_LOG=error pyrefly check --summary=none --output-format min-text

format: dev  ## format the code and fix what ruff can fix
	@$(RUN) ruff check --quiet --fix-only .
	@$(RUN) ruff format .

promote: install  ## judge the newest version, make it champion if the gate allows it (ARGS=--dry-run)
	@$(RUN) python -m flows.promote $(ARGS)

reproduce: ready install  ## run the stale stages by dvc repro, without a flow (ARGS=--force: all stages)
	@$(RUN) dvc repro $(ARGS)

mlflow: install  ## serve MLflow's pages at http://127.0.0.1:5000 (MLFLOW_PORT=5001)
	@exec env $(RUN) python -m flows.ui --only mlflow --mlflow-port $(MLFLOW_PORT) $(ARGS)

prefect: install  ## serve Prefect at http://127.0.0.1:4200 (PREFECT_PORT=4201)
	@exec env $(RUN) python -m flows.ui --only prefect --prefect-port $(PREFECT_PORT) $(ARGS)

ui: ready install  ## start MLflow, Prefect with a worker and the deployments, and the viewer of trajectories (ARGS="--runs 2")
	@exec env $(RUN) python -m flows.ui --mlflow-port $(MLFLOW_PORT) --prefect-port $(PREFECT_PORT) --view-port $(VIEW_PORT) $(ARGS)

view: install  ## serve the viewer of trajectories at http://127.0.0.1:8600, and print its key (VIEW_PORT=8601, ARGS="--run folder")
	@exec env $(RUN) python -m viewer --port $(VIEW_PORT) $(ARGS)

browser: dev  ## test the pages in a real browser, Debian's chromium (ARGS="-k view")
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
		echo "There is no Chromium on this machine: install Debian's package chromium (apt-get install chromium)." >&2; exit 1; }
	@$(RUN) python -m pytest tests/browser $(ARGS)

# Existing pins stay unless ARGS says otherwise (ARGS=--upgrade, ARGS="--upgrade-package trl"). The lock for CUDA starts from the
# pins of the one for the CPU, so that the two differ only where they must. dev.txt holds what tests need beside either.
# One lock is for all Pythons: what some of them need has a marker. uv adds the limits of [tool.uv] to every line, and UNMARK takes
# them off again. A wheel of CPU torch needs the same on each Python, so that a local one stands for those of the others.
COMPILE = UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile pyproject.toml --extra install --overrides requirements/overrides.txt \
	--universal --python-version 3.11
FOR_CPU = --extra cpu --overrides requirements/overrides-cpu.txt $(CPU_TORCH) --find-links "$$wheels"
LIMITS := platform_machine == 'x86_64' and platform_python_implementation == 'CPython' and sys_platform == 'linux'
UNMARK := sed -i "s/ and $(LIMITS)//; s/ ; python_full_version < '3.14'$$//; s/ ; python_full_version < '3.14' and / ; /; /^ *\#   \(-c\|--override\) /d"
PINS = awk -F '==' '/^[a-z0-9]/ && !seen[$$1]++'
lock: install  ## write requirements/*.txt from pyproject.toml (ARGS=--upgrade)
	@echo "lock: requirements/cpu.txt, dev.txt"
	@new=$$(mktemp requirements/new.XXXXXX); wheels=$$(mktemp -d); trap 'rm -rf "$$new" "$$wheels"' EXIT; \
	for wheel in $(realpath $(TORCH_WHEEL)); do name="$${wheel##*/}"; \
		for tag in cp311 cp312 cp313; do ln -s "$$wheel" "$$wheels/$${name//$(TAG)/$$tag}"; done; done; \
	$(COMPILE) $(FOR_CPU) -o requirements/cpu.txt $(ARGS) >/dev/null; $(UNMARK) requirements/cpu.txt; \
	$(PINS) requirements/cpu.txt requirements/dev.txt > "$$new"; \
	$(COMPILE) $(FOR_CPU) --extra dev --extra browser --no-annotate -c requirements/cpu.txt -o "$$new" $(ARGS) >/dev/null; $(UNMARK) "$$new"; \
	{ echo "# What checks and tests need beside cpu.txt or gpu.txt; made by 'make lock'."; \
		grep '==' "$$new" | grep -vxFf <(grep '^[a-z0-9]' requirements/cpu.txt); } > requirements/dev.txt
	@echo "lock: requirements/gpu.txt"
	@new=$$(mktemp requirements/gpu.XXXXXX); trap 'rm -f "$$new"' EXIT; \
	$(PINS) requirements/cpu.txt requirements/gpu.txt > "$$new"; \
	$(COMPILE) --extra gpu -c requirements/dev.txt -o "$$new" >/dev/null; $(UNMARK) "$$new"; chmod 644 "$$new"; mv "$$new" requirements/gpu.txt
	@git --no-pager diff --stat -- requirements || true

doctor: install  ## say whether this folder and machine are well, and how to mend what is not (ARGS=--mend)
	@$(RUN) python -m flows.doctor --mlflow-port $(MLFLOW_PORT) --prefect-port $(PREFECT_PORT) --viewer-port $(VIEW_PORT) \
		$(DOCTOR) $(ARGS)

audit: install  ## look the locked packages up in a database of vulnerabilities (exit code 3: by the kept list alone)
	@$(RUN) python -m flows.audit $(ARGS)

clean:  ## remove run/ and the caches of tools
	rm -rf run .pytest_cache .mypy_cache .ruff_cache
	find flows steps addons environments viewer benchmarks tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean  ## also remove .venv, DVC's cache and .flywheel/ (MLflow's store, registry, ledger)
	rm -rf .venv .flywheel .dvc/cache .dvc/tmp
