# Targets for developers; `make` prints them. Everything is installed into .venv.

PYTHON ?= python3
DATA   ?= build/demo-data
PORT   ?= 8000
GPU    ?= auto

# The folder of wheel and sdist, and what installs the tools that build them: pip or uv.
DIST   := dist
INSTALLER := pip
VENV   := .venv
BIN    := $(VENV)/bin
SOURCE := pyproject.toml

# Tests start hundreds of processes. Without cached bytecode, each of them would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

# Four processes for two cores, since many tests wait; idle processes take over tests of the others.
PYTEST_FLAGS ?= -n 4 --dist worksteal
# Lanes with separate targets.
NO_GPU       := --ignore=tests/gpu --ignore=tests/wheel --ignore=tests/vllm

# The worker extra for this machine's driver: CUDA 13 needs 580, CUDA 12 needs 525; empty without an NVIDIA GPU.
define worker_extra
$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | \
	awk -F. 'NR == 1 && $$1 ~ /^[0-9]+$$/ { if ($$1 >= 580) print ",worker-cuda13"; else if ($$1 >= 525) print ",worker-cuda12" }')
endef

.DEFAULT_GOAL := help
.PHONY: help venv demo serve test test-all test-without soak test-wheel test-vllm test-gpu lint check golden derived sanitize wheel release bench-core bench-traffic bench-chains bench-layers bench-search bench-submissions bench-crowds bench-service bench-full-store bench-pages bench-cluster bench-first-jobs bench-measuring bench-orders bench-simulator bench-take-home bench-model bench-gpu bench-torch results clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; give it as PYTHON=...")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Stamps: the extras are installed again only when pyproject.toml changes.
$(VENV)/.server: $(BIN)/python $(SOURCE)
	@echo "Installing the server into $(VENV) (about a minute the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[server$(worker_extra)]"
	@touch $@

# Each process of the tests imports these at the same time as the others, so they are compiled before, each once. All
# other modules are compiled when they are imported, which few are.
COMPILED := _pytest alembic anyio attr click cryptography dask distributed fastapi h11 httpcore httpx hypothesis jinja2 \
	jsonschema mako numpy opentelemetry optuna packaging playwright prometheus_client psutil pydantic pydantic_settings \
	pygments rich sqlalchemy starlette toolz tornado tqdm uvicorn yaml

# uv takes a sixth of pip's processor time, but does not read pip's settings: where it fails, pip installs.
$(VENV)/.dev: $(BIN)/python $(SOURCE)
	@echo "Installing the server and the developer's tools into $(VENV) (up to two minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python=$(BIN)/python --editable ".[server,dev$(worker_extra)]" || \
		$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable ".[server,dev$(worker_extra)]"
	@$(BIN)/python -m compileall -qq -j 0 -x /tests/ $(addprefix $(VENV)/lib/python3*/site-packages/,$(COMPILED)) || true
	@touch $@ $(VENV)/.server

venv: $(VENV)/.dev ## install everything needed for development into .venv

demo: $(VENV)/.server ## tune the Llama-3-8B FFN pair end to end, on a GPU if there is one, else on a simulated H200
	@$(BIN)/python -m tuner.demo --data $(DATA) --gpu $(GPU) --output build/best

serve: $(VENV)/.server ## serve on 127.0.0.1:PORT (8000) with the demo's data; GPU=auto|simulated:h200|none
	@$(BIN)/tuner serve --host 127.0.0.1 --port $(PORT) --data $(DATA) --gpu $(GPU)

test: $(VENV)/.dev ## run the quick tests that need no GPU; compiled kernels are cached in build/cubins
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow and not soak" $(NO_GPU) tests

test-all: $(VENV)/.dev ## run all tests that need no GPU and are not marked soak, without cached kernels
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) --cold -m "not soak" $(NO_GPU) tests

test-without: $(VENV)/.dev ## run the quick tests of everything but the op kind KIND=, in a copy without its folder; prints how many tests it has
	@$(BIN)/python -m tests.house.without $(KIND) $(PYTEST_FLAGS) -m "not slow and not soak" $(NO_GPU) tests

soak: $(VENV)/.dev ## run the soak tests and programs, hours (PROGRAM= SEED= SECONDS=); continues an interrupted run; writes benchmarks/results/soak/
	@$(if $(PROGRAM),:,$(BIN)/python -m pytest $(PYTEST_FLAGS) -m soak $(NO_GPU) tests)
	@$(if $(PROGRAM),:,$(BIN)/python -m pytest -m soak tests/wheel)
	@$(BIN)/python -m tests.soak $(PROGRAM) $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))
	@$(if $(PROGRAM),:,if nvidia-smi >/dev/null 2>&1; then $(BIN)/python -m benchmarks.trust.sanitize; fi)

test-wheel: $(VENV)/.dev ## build the wheel, and test it in an empty environment (installs from PyPI)
	@$(BIN)/python -m pytest -m "not soak" tests/wheel

test-vllm: ## run the wheel's plugin inside vLLM on a CPU (20 min on two cores); PYTHON= the Python of an environment with vLLM and pytest
	@$(PYTHON) -m pytest tests/vllm

test-gpu: $(VENV)/.dev ## run the tests that need an NVIDIA GPU; they fail without one
	@TUNER_REQUIRE_GPU=1 $(BIN)/python -m pytest tests/gpu

lint: $(VENV)/.dev ## ruff, formatting, mypy --strict, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

check: ## run everything that CI runs
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=line lint test-wheel test-all

golden: $(VENV)/.dev ## update the generated sources, machine code digests and reports in tests/compile; review their diff
	@$(BIN)/python -m tests.compile.golden
	@$(BIN)/python -m tests.compile.machine_code
	@$(BIN)/python -m tests.compile.reports

derived: $(VENV)/.dev ## write the generated files that need no compiler: tables for C, documents of the client, rows of the docs, lists of names
	@$(BIN)/python -m tuner.runtime.binding.rows
	@$(BIN)/python -m tuner.runtime.checkpoints.lanes
	@$(BIN)/python -m tests.house.axes_page
	@$(BIN)/python -m tests.house.documents
	@$(BIN)/python -m tests.house.parts
	@$(BIN)/python -m tests.house.kinds

sanitize: $(VENV)/.dev ## run every engine's kernels under compute-sanitizer; needs a GPU and the CUDA toolkit
	@$(BIN)/python -m benchmarks.trust.sanitize

wheel: $(VENV)/.dev ## build the wheel into dist/
	@$(BIN)/python -m build --installer $(INSTALLER) --wheel --outdir $(DIST) .

release: $(VENV)/.dev ## build sdist and wheel into dist/, check them, and test the wheel; uploads nothing
	@rm -f $(DIST)/*.whl $(DIST)/*.tar.gz
	@$(BIN)/python -m build --installer $(INSTALLER) --outdir $(DIST) .
	@$(BIN)/python -m twine check --strict $(DIST)/*.whl $(DIST)/*.tar.gz
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(BIN)/python -m venv --without-pip "$$folder" && \
		$(BIN)/python -m pip --python "$$folder/bin/python" install --quiet --no-compile --disable-pip-version-check $(DIST)/*.whl && \
		"$$folder/bin/python" -I "$$folder/bin/tuner-client" --help >/dev/null
	@echo "$(DIST)/ holds a release; nothing was uploaded"

bench-core: $(VENV)/.dev ## time verify on plans of 20,000 tasks; writes benchmarks/results/cpu/
	@$(BIN)/python -m benchmarks.cpu.core

bench-search: $(VENV)/.dev ## evaluate searches with jobs on this machine's GPU: duration, quality, seeds, a ladder (PART=, SECONDS=540; continues an interrupted run); writes benchmarks/results/<gpu>/
	@$(BIN)/python -m benchmarks.search.measure --gpu $(GPU) $(foreach name,$(PART),--part $(name)) --seconds $(or $(SECONDS),540)

bench-pages: $(VENV)/.dev ## time the dashboard in a headless Chromium, and check it for errors; writes benchmarks/results/cpu/
	@$(BIN)/python -m benchmarks.cpu.pages
	@$(BIN)/python -m benchmarks.cpu.gantt_page

bench-submissions: $(VENV)/.dev ## time 200 POST /jobs per second, with tokens; writes benchmarks/results/cpu/
	@$(BIN)/python -m benchmarks.cpu.submissions

bench-crowds: $(VENV)/.dev ## time responses with 1,100 idle connections, an event with 640 streams, and the front page with 2,500 jobs; writes benchmarks/results/cpu/
	@$(BIN)/python -m benchmarks.cpu.crowds

bench-service: bench-submissions bench-crowds bench-full-store bench-cluster ## measure all rows of benchmarks/results/cpu/service.json again (on an idle machine)

bench-full-store: $(VENV)/.dev ## time pages and GET /best with 1,100,000 trials, with and without a running job; writes benchmarks/results/cpu/
	@$(BIN)/python -m benchmarks.cpu.full_store

bench-cluster: $(VENV)/.dev ## measure the overhead of a cluster per trial, and its gain; writes benchmarks/results/cpu/
	@$(BIN)/python -m benchmarks.cpu.cluster

bench-measuring: $(VENV)/.dev ## check the measuring protocol of docs/measuring.md on this machine's GPU (4 min); writes benchmarks/results/<gpu>/
	@$(BIN)/python -m benchmarks.trust.measuring

bench-orders: $(VENV)/.dev ## time one tiling of a pair in many orders on this machine's GPU (4 min, SECONDS=); writes benchmarks/results/<gpu>/
	@$(BIN)/python -m benchmarks.orders.measure --gpu $(GPU) $(if $(SECONDS),--seconds $(SECONDS))

bench-traffic: $(VENV)/.dev ## compare six published models of traffic and the simulator with counters (30 s); writes benchmarks/results/<gpu>/
	@$(BIN)/python -m benchmarks.traffic.measure --gpu $(GPU)

bench-chains: $(VENV)/.dev ## time chains of a decoder layer against the library (1 min per row, ROW=, TRIALS=, MISSING=1, SECONDS=); writes benchmarks/results/<gpu>/
	@$(BIN)/python -m benchmarks.chains.search --gpu $(GPU) $(if $(ROW),--row $(ROW)) $(if $(TRIALS),--trials $(TRIALS)) $(if $(MISSING),--missing) $(if $(SECONDS),--seconds $(SECONDS))

bench-layers: $(VENV)/.dev ## time decoder layers against the library (1 min per row, ROW=, TRIALS=, SECONDS=); writes benchmarks/results/<gpu>/
	@$(BIN)/python -m benchmarks.attention.layers --gpu $(GPU) $(if $(ROW),--row $(ROW)) $(if $(TRIALS),--trials $(TRIALS)) $(if $(SECONDS),--seconds $(SECONDS))

bench-simulator: $(VENV)/.dev ## evaluate the simulator on measured schedules, and fit it (FIT=1, minutes); needs no GPU; writes benchmarks/results/h200/
	@$(BIN)/python -m benchmarks.simulator.judge $(if $(FIT),--fit --trials 30)

bench-take-home: $(VENV)/.dev ## check packs on this machine's GPU, and measure their overhead (4 min, CHECK=); writes benchmarks/results/<gpu>/
	@$(BIN)/python -m benchmarks.runtime.take_home $(if $(CHECK),--only "$(CHECK)")

bench-model: $(VENV)/.dev ## make packs from model configs, and time decode steps with them, on this machine's GPU (5 min, TRIALS=)
	@$(BIN)/python -m benchmarks.runtime.model $(if $(TRIALS),--trials $(TRIALS))

# SUITE and ROW select rows; after SECONDS, no new row begins. FORCE=1 also searches rows with a result again.
named = $(foreach name,$(SUITE),--suite $(name)) $(foreach name,$(ROW),--row $(name))

bench-gpu: $(VENV)/.dev ## tune the benchmark pairs with jobs (SUITE= ROW= TRIALS= PRIORS=none FORCE=1); writes tuner/winners/ and benchmarks/results/<gpu>/pairs.json
	@$(BIN)/python -m benchmarks.pairs.search --gpu $(GPU) $(named) $(if $(TRIALS),--trials $(TRIALS)) \
		$(if $(PRIORS),--priors $(PRIORS)) $(if $(REGIME),--regime $(REGIME)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(SECONDS),--seconds $(SECONDS)) $(if $(FORCE),--force)

# The rows of the README's chart; their winners are not shipped.
first = decode-plain/llama3-8b/m16 decode-plain/gpt3-tp8/m16 decode-swiglu/llama3-8b/m16 decode-swiglu/llama65b-tp8/m64 middle/gpt3-tp8/m192

bench-first-jobs: $(VENV)/.dev ## run the first jobs of five pairs: 60 trials, no priors; writes benchmarks/results/h200/first_jobs.json
	@$(BIN)/python -m benchmarks.pairs.search --gpu $(GPU) --trials 60 --priors none --force $(foreach name,$(first),--row $(name)) \
		--winners build/first-jobs --out benchmarks/results/h200/first_jobs.json

bench-torch: $(VENV)/.dev ## time PyTorch along with the library for the rows of bench-gpu (SUITE= ROW=); adds torch_us to pairs.json
	@$(BIN)/python -m benchmarks.pairs.torch_check --gpu $(GPU) $(named) $(if $(ROUNDS),--rounds $(ROUNDS))

results: $(VENV)/.dev ## regenerate the README's table, docs/results.md, docs/orders.md, docs/traffic.md, tables of docs/simulator.md and the dashboard's results page from benchmarks/results/
	@$(BIN)/python -m benchmarks.pairs.front
	@$(BIN)/python -m benchmarks.pairs.page
	@for file in benchmarks/results/*/pairs.json; do $(BIN)/python -m benchmarks.pairs.shipped_finals --results $$(dirname $$file); done
	@$(BIN)/python -m benchmarks.orders.page
	@$(BIN)/python -m benchmarks.traffic.page
	@$(BIN)/python -m benchmarks.simulator.library

clean: ## remove build outputs; keeps .venv and the demo's data
	rm -rf dist build/best build/lib build/cubins build/emulated .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
