# What a person types. `make demo` and `make test` do all their own set-up in .venv.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Compiled modules are kept, also where the environment forbids it: otherwise each process of the tests compiles all of
# them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help venv demo test test-all test-oldest frameworks test-changed reach durations budgets flaky verify lint format generate docs bench-recovery bench-goodput bench-tiers bench-overhead bench-trainer bench-compiling bench-pinning bench-create bench-idle bench-fleet bench-cluster cuda soak soak-runs cluster cluster-down e2e images claims clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

venv: $(STAMP)  ## only the set-up: .venv with everything that the other targets need

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(f"Python 3.11 or newer is needed; {sys.executable} is {sys.version.split()[0]}") if sys.version_info < (3, 11) else None'
	@echo "Setting up $(VENV), once: torch and what development needs, some 7 GB. It takes one to several minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo "Downloading and unpacking packages, and compiling them to bytecode; nothing is said until that is done."
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	@touch $@
	@echo "$(VENV) is ready; '. $(BIN)/activate' gives this shell the command trainmaster."

demo: venv  ## train a small GPT over four ranks, lose one in mid-run, and lose nothing
	$(BIN)/trainmaster demo

# Three workers for the two cores that CI has: one of them mostly waits for a process. Tests go to them in the order of
# tests/suite/durations.json.
PYTEST := $(BIN)/python -m pytest -n $(or $(WORKERS),3)

test: venv  ## every test that needs no cluster, but those that guard releases only
	$(PYTEST) -m "not release"

test-all: venv  ## all tests that need no cluster: with those that guard releases (tests/suite/releases.txt), then those of frameworks
	$(PYTEST)
	$(MAKE) frameworks

frameworks: venv  ## TensorFlow, JAX, DeepSpeed, Horovod, transformers, Lightning and XGBoost, each in an environment of its own, with kills and hangs; ONLY=jax, SMOKE=1
	TRAINMASTER_FRAMEWORKS=1 $(PYTEST) tests/frameworks -m $(if $(SMOKE),smoke,framework) -o faulthandler_timeout=3600 $(if $(ONLY),-k "$(ONLY)")

# torch is pinned to the newest in constraints.txt, and with it the versions of all that it needs.
OLDEST := .venv-oldest
OLDEST_TORCH := 2.11.0
OLDEST_PYTHON := 3.12

test-oldest: $(OLDEST)/.installed  ## the tests with the oldest torch that the trainer takes, in a set-up of its own
	$(OLDEST)/bin/python -m pytest -n $(or $(WORKERS),3) -m "not release" $(ONLY)

$(OLDEST)/.installed: pyproject.toml constraints.txt | $(STAMP)
	@echo "Setting up $(OLDEST), once, with torch $(OLDEST_TORCH) and Python $(OLDEST_PYTHON): some 7 GB."
	$(BIN)/uv venv --quiet --clear --python $(OLDEST_PYTHON) $(OLDEST)
	sed -E '/^(torch|triton|nvidia-|cuda-|setuptools)/d' constraints.txt > $(OLDEST)/constraints.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(OLDEST)/bin/python --constraint $(OLDEST)/constraints.txt --editable '.[dev]' torch==$(OLDEST_TORCH)
	@touch $@

test-changed: venv  ## what the change since main, or since BASE, can reach
	$(BIN)/python -m tests.suite.reach $(if $(BASE),--base $(BASE))

reach: venv  ## record again what each test executes, for test-changed; ONLY=tests/planning renews a part
	$(BIN)/python -m tests.suite.reach.record $(if $(ONLY),--only $(ONLY))

durations: venv  ## measure all tests, on a machine that does nothing else, for tests/suite/durations.json
	$(BIN)/python -m pytest -n 2 --record-durations=runs/durations.json
	$(BIN)/python -m tests.suite.durations runs/durations.json

budgets: venv  ## tests that are over the budget of their kind, by the durations in tests/suite/durations.json
	$(BIN)/python -m tests.suite.budgets --check

flaky: venv  ## a quarter of the process tests, several times on a busy machine; N=3 SHARD=1/4 LOAD=2
	$(BIN)/python -m tests.suite.flaky --times $(or $(N),3) --shard $(or $(SHARD),1/4) $(if $(LOAD),--load $(LOAD))

verify: venv lint  ## lint, types, layers, stale generated files, links of the pages, and tests over their budget
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m trainmaster_operator.api.crd.crd_schema --check manifests/crd
	$(BIN)/python -m trainmaster_operator.api.validation.unknown_pod_fields --check
	$(BIN)/python -m charts.dashboards --check
	$(BIN)/python charts/generate.py --check
	$(BIN)/python -m docs.generate.metrics_page --check docs/metrics.md
	$(BIN)/python -m benchmarks.pages --check docs/measured.md docs/goodput.md docs/scripts.md docs/frameworks/README.md docs/gpu.md README.md
	$(BIN)/python -m docs.generate --check
	$(BIN)/python -m tests.suite.budgets --check
	test ! -e operator/__init__.py

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: venv  ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: venv  ## write the files that are generated from models, metrics, chart, docstrings and examples
	$(BIN)/python -m trainmaster_operator.api.crd.crd_schema manifests/crd
	$(BIN)/python -m trainmaster_operator.api.validation.unknown_pod_fields
	$(BIN)/python -m charts.dashboards
	$(BIN)/python charts/generate.py
	$(BIN)/python -m docs.generate.metrics_page docs/metrics.md
	$(BIN)/python -m benchmarks.pages docs/measured.md docs/goodput.md docs/scripts.md docs/frameworks/README.md docs/gpu.md README.md
	$(BIN)/python -m docs.generate

DOCS := .venv-docs

docs: $(DOCS)/.installed  ## build the pages of docs/ as a site into site/; WITH=zensical builds it with Zensical
	$(DOCS)/bin/$(or $(WITH),mkdocs) build --strict --clean

$(DOCS)/.installed: pyproject.toml | $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(DOCS)
	$(BIN)/uv pip install --quiet --python $(DOCS)/bin/python --requirements pyproject.toml --extra docs
	@touch $@

soak: venv  ## simulated faults by the hundred thousand; SCHEDULES=100000 SECONDS_LIMIT=600 EXHAUSTIVE=1 set how many
	$(BIN)/python -m simulation soak $(if $(SCHEDULES),--schedules $(SCHEDULES)) $(if $(SECONDS_LIMIT),--seconds $(SECONDS_LIMIT)) $(if $(EXHAUSTIVE),--exhaustive)

soak-runs: venv  ## whole runs with random faults and resizes, each compared with an undisturbed one; RUNS=50, half an hour
	$(BIN)/python -m tests.e2e.soak $(if $(RUNS),--runs $(RUNS))

claims:  ## run the commands that show what README and docs claim, on a fresh clone; ONLY="demo recovery" runs a part
	$(PYTHON) -m claims $(if $(ONLY),--only $(ONLY)) $(if $(WITH_CLUSTER),--cluster)

bench-recovery: venv  ## recovery time, compared with torchrun; raw samples go to benchmarks/results/
	$(BIN)/python -m benchmarks.recovery

bench-goodput: venv  ## share of useful time under faults, compared with torchrun and a shell loop; continues an earlier run
	$(BIN)/python -m benchmarks.goodput

bench-tiers: venv  ## recovery from own memory, from a peer's, from storage; 10 MB to 1 GB of state
	$(BIN)/python -m benchmarks.tiers

bench-overhead: venv  ## tokens/s, compared with a hand-written loop
	$(BIN)/python -m benchmarks.overhead

bench-compiling: venv  ## tokens/s with and without torch.compile
	$(BIN)/python -m benchmarks.compiling

bench-pinning: venv  ## step time of ranks that are pinned to cores, compared with the default
	$(BIN)/python -m benchmarks.pinning

bench-trainer: venv  ## tokens/s of DDP, FSDP2, TP and PP, compared with plain torch, Accelerate and DeepSpeed
	DS_BUILD_OPS=0 $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/python -m benchmarks.trainer

bench-cluster: venv  ## recovery on a cluster: ranks, pods, nodes and leaders that are lost; needs `make cluster`
	$(BIN)/python -m benchmarks.cluster_recovery
	$(BIN)/python -m benchmarks.cluster_lost_node
	$(BIN)/python -m benchmarks.cluster_spares

bench-create: venv  ## time to create a job's pods, compared with a bare client; needs `make cluster`
	$(BIN)/python -m benchmarks.create

bench-idle: venv  ## memory and CPU of the operator for jobs at rest; needs `make cluster`
	$(BIN)/python -m benchmarks.idle

bench-fleet: venv  ## the control channel under 1,000 and 4,000 simulated agents
	$(BIN)/python -m benchmarks.fleet

# Not by way of venv: a machine with a GPU may have no network, and a python3 that has torch. A PYTHON that is given wins.
FOUND_PYTHON := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
CUDA_PYTHON := $(if $(filter command environment,$(origin PYTHON)),$(PYTHON),$(FOUND_PYTHON))

cuda:  ## what works on this machine's GPU, how fast it is, what it costs; ONLY="works speed" runs a part, OUT=runs/cuda
	$(CUDA_PYTHON) -m benchmarks.cuda $(ONLY) $(if $(OUT),--out $(OUT)) $(if $(SECONDS_LIMIT),--seconds $(SECONDS_LIMIT)) $(if $(ROWS),--rows $(ROWS))

cluster:  ## a real Kubernetes of three nodes here, with our images in it; prints how to install the chart there (root)
	$(PYTHON) -m e2e.cluster images
	$(PYTHON) -m e2e.cluster up

# CLUSTER: own (the one above), kind (one that kind makes), or current (what KUBECONFIG says, with the images at hand).
CLUSTER ?= own
UP_own := $(PYTHON) -m e2e.cluster images && $(PYTHON) -m e2e.cluster up
DOWN_own := $(PYTHON) -m e2e.cluster down
UP_kind := $(PYTHON) -m e2e.cluster images && $(PYTHON) -m e2e.kind up
DOWN_kind := $(PYTHON) -m e2e.kind down
UP_current := true
DOWN_current := true

e2e: venv  ## end-to-end tests; CLUSTER=own, kind or current; a cluster that was made is taken down, whatever happens
	@test -n "$(UP_$(CLUSTER))" || { echo "CLUSTER=$(CLUSTER): own, kind or current"; exit 2; }
	trap '$(DOWN_$(CLUSTER)) || exit 1' EXIT; $(UP_$(CLUSTER)) && E2E_CLUSTER=$(CLUSTER) $(BIN)/python -m e2e

cluster-down:  ## end that Kubernetes and remove everything except a cache
	$(PYTHON) -m e2e.cluster down

# With REGISTRY, also: PLATFORMS, BASE, TORCH, BUILDER, BUILD_OPTIONS, VALUES, PLAIN_HTTP=1 (docs/install.md).
PUBLISH = $(PYTHON) docker/publish.py --registry '$(REGISTRY)' --tag '$(TAG)' $(if $(PLATFORMS),--platforms '$(PLATFORMS)') \
  $(if $(BASE),--base '$(BASE)') $(if $(TORCH),--torch '$(TORCH)') $(if $(BUILDER),--builder '$(BUILDER)') \
  $(if $(BUILD_OPTIONS),--options='$(BUILD_OPTIONS)') $(if $(VALUES),--values '$(VALUES)') $(if $(PLAIN_HTTP),--plain-http)

images:  ## build the images and bring them to the nodes of `make cluster`; REGISTRY=... TAG=... push them there instead
	$(if $(REGISTRY),$(PUBLISH),$(PYTHON) -m e2e.cluster images)

clean:  ## remove the virtual environments, the site and caches
	rm -rf $(VENV) $(DOCS) site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
