# Everything runs in a virtual environment of this directory, made when it is first needed and again when
# pyproject.toml changes. Another interpreter: make test PYTHON=python3.12; another place: VENV=/tmp/venv.
PYTHON ?= python3
VENV ?= .venv
# Tests side by side: most wait for beats and workers, so more than there are cores.
JOBS ?= 6
ARGS ?=
# Which part of make matrix: SESSIONS='-s corners'.
SESSIONS ?=
# How long make chaos lasts.
MINUTES ?= 3
# Seconds between two of its faults, on average: 3,000 faults in 45 minutes with EVERY=0.9.
EVERY ?= 1.8
# Its broker: redis, which is a Valkey where there is one, or rabbitmq.
BROKER ?= redis
# How many bodies make effects strikes.
FAULTS ?= 1000
# How many masters of each kind make failover kills.
KILLS ?= 50
# What seed their faults come from; a new one each time if empty.
SEED ?=
# Where the report of chaos goes.
REPORT ?=
# How many windows make simulate plays (10000), and make leaks lets through (100000).
WINDOWS ?=
# Of make simulate. ABLATIONS=1: it leaves out each rule of the protocol in turn. CORES=2: it plays on two of them.
# MODEL=1: what the store answers is held against the protocol's model, too.
ABLATIONS ?=
CORES ?= 1
MODEL ?=
# How often make bench measures each thing, and which part alone: ONLY=workers. Of make mutants: ONLY=python, ONLY=lua; of
# make simulate ABLATIONS=1: ONLY=fence,renew-extends.
ROUNDS ?= 5
ONLY ?=
# How many mutants of each part make mutants tries; all if empty. AT='claim.lua:57 rules/starts.py': those of a line, a file.
SAMPLE ?=
AT ?=
# COVERAGE=1: make test-all and make long measure the tests, their subprocesses too.
COVERAGE ?=
# Without any server of the machine, as on one with Python and make only (tests/needs.py): make test ONCE_TEST_BARE=1.
export ONCE_TEST_BARE
# Else each of the thousand processes that the tests start would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

PY = "$(VENV)/bin/python"
PYTEST = -m pytest -n $(JOBS) --dist loadgroup
# The test command, measured or not: combine adds to what is there.
TESTED = $(if $(COVERAGE),$(PY) -m coverage run $(PYTEST) $(1) && $(PY) -m coverage combine --append --quiet,$(PY) $(PYTEST) $(1))
SOURCES := $(shell find celery_once_beat tests examples -name '*.py' -o -name '*.lua') pyproject.toml

.PHONY: help demo saas recording timelines screenshot unit test test-all long nightly whens model matrix figures chaos simulate mutants celery-suite effects failover leaks bench docs check lint types wheel coverage format clean

help:  ## what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

demo: $(VENV)/.demo  ## two beats and two workers, one of each killed
	$(PY) -m examples.ha_pair

.PHONY: examples  # there is a folder of that name
examples: $(VENV)/.demo  ## six ways to run a job on one of many nodes: how each goes wrong, and the same here
	$(PY) -m examples.ways

saas: $(VENV)/.saas  ## a service over FastAPI: tenants who choose when they get a report
	$(PY) -m examples.saas $(ARGS)

recording: $(VENV)/.demo  ## the demo once more, recorded for README.md
	$(PY) -m examples.ha_pair --record docs/demo.svg

timelines: $(VENV)/.demo  ## what happens when a beat dies, a worker dies, Redis fails over: real runs, drawn for the docs
	$(PY) -m examples.ha_pair.timelines docs

screenshot: $(VENV)/.test  ## the board over a day of windows, as docs/board*.png
	cd tests && $(abspath $(VENV))/bin/python screenshot.py

unit: $(VENV)/.unit  ## the unit tests: no beat, no worker
	$(PY) -m pytest tests/unit $(ARGS)

test: $(VENV)/.test  ## what shows the most in three minutes; some of all tests: make test ARGS='tests/unit -x'
	$(PY) $(PYTEST) $(or $(ARGS),-m "" --short)

test-all: $(VENV)/$(if $(COVERAGE),.check,.test)  ## all tests but those that take long
	$(if $(COVERAGE),$(PY) -m coverage erase)
	$(call TESTED,$(ARGS))

long: $(VENV)/$(if $(COVERAGE),.check,.test)  ## the tests that take a quarter of a minute or more each
	$(call TESTED,-m long $(ARGS))

nightly: test-all long coverage chaos model celery-suite matrix  ## what takes an hour or more; COVERAGE=1

whens: $(VENV)/.test  ## a million starts of cron lines in all time zones against an independent cron, SEED=7
	cd tests && $(abspath $(VENV))/bin/python whens.py $(if $(SEED),--seed $(SEED))

model: $(VENV)/.test  ## the protocol's model in every state
	$(PY) -m pytest -s -m "" tests/simulation/test_model.py

matrix: $(VENV)/.matrix  ## all tests with each Python, Celery, redis-py and server that is supported: hours
	$(PY) -m nox $(SESSIONS) $(if $(ARGS),-- $(ARGS))

figures: $(VENV)/.test  ## the tests that docs/reports/evidence.md names; writes what they measure there and into docs/reports/failures.md
	$(PY) $(PYTEST) -m "" --figures

chaos: $(VENV)/.test  ## kills, freezes, cuts and floods a running system: make chaos MINUTES=60 SEED=7 EVERY=0.9 BROKER=rabbitmq
	mkdir -p build
	$(PY) -m pytest -s tests/chaos/soak.py --basetemp build/chaos --minutes $(MINUTES) --every $(EVERY) --broker $(BROKER) $(if $(SEED),--seed $(SEED)) $(if $(REPORT),--report $(REPORT))

simulate: $(VENV)/.test  ## the whole system in one process under virtual time: make simulate SEED=1 WINDOWS=10000 CORES=2; ABLATIONS=1
	cd tests && $(abspath $(VENV))/bin/python -m simulation --cores $(CORES) $(if $(SEED),--seed $(SEED)) $(if $(WINDOWS),--windows $(WINDOWS)) $(if $(MODEL),--model) $(if $(ABLATIONS),--ablations $(if $(ONLY),--only '$(ONLY)'))

mutants: $(VENV)/.mutants  ## whether a test fails of each small change of the pure core and of the Lua: SAMPLE=300 SEED=7 ONLY=lua
	cd tests && $(abspath $(VENV))/bin/python -m mutation $(if $(ONLY),--only '$(ONLY)') $(if $(SEED),--seed $(SEED)) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(AT),--at $(AT))

celery-suite: $(VENV)/.test  ## Celery's own integration suite, with plain tasks and with OnceTask
	cd tests && $(abspath $(VENV))/bin/python celery_suite.py

effects: $(VENV)/.test  ## bodies that write on PostgreSQL, killed and frozen FAULTS=1000 times; writes docs/reports/effects.md
	$(PY) -m pytest -s -m long tests/effects/test_proof.py --faults $(FAULTS) --report docs/reports

failover: $(VENV)/.test  ## masters of Sentinel and Cluster killed under load, KILLS=50 of each kind; writes a report
	cd tests && $(abspath $(VENV))/bin/python -m failover --kills $(KILLS) $(if $(SEED),--seed $(SEED))

leaks: $(VENV)/.test  ## many windows through one beat and one worker, WINDOWS=100000; writes a report
	$(PY) -m pytest -s -m long tests/leaks --windows $(or $(WINDOWS),100000) --report docs/reports

bench: $(VENV)/.bench  ## this and its peers side by side, ROUNDS=5 ONLY=workers; writes a report, plots and docs/scaling.md's table
	cd tests && $(abspath $(VENV))/bin/python -m benchmarks --rounds $(ROUNDS) $(if $(ONLY),--only '$(ONLY)')

docs: $(VENV)/.docs  ## the docs as a site, in build/site; a warning is an error
	$(PY) tests/docs/doc_site.py

check: lint types docs wheel coverage  ## all that is checked besides the tests

lint: $(VENV)/.check  ## ruff's rules and format, and that imports point one way
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	"$(VENV)/bin/lint-imports"

types: $(VENV)/.check  ## mypy --strict, and a user's app under mypy and pyright
	$(PY) -m mypy
	$(PY) -m pyright --project . --pythonpath $(PY)

wheel: $(VENV)/.check  ## the wheel as pip installs it, tested away from this directory
	$(PY) tests/wheel.py

coverage: .coverage $(VENV)/.check  ## what the tests leave out; runs make test-all if something has changed since
	$(PY) -m coverage report

.coverage: $(SOURCES)
	$(MAKE) test-all COVERAGE=1 ARGS=

format: $(VENV)/.check  ## what ruff can mend by itself
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

# One environment, to which each target adds what it needs: the demo needs no more than the demo does.
$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv "$(VENV)"

$(VENV)/.saas: EXTRAS = saas
$(VENV)/.demo: EXTRAS = demo
$(VENV)/.unit: EXTRAS = test
$(VENV)/.test: EXTRAS = test-all
$(VENV)/.check: EXTRAS = check,test-all
$(VENV)/.bench: EXTRAS = bench
$(VENV)/.docs: EXTRAS = docs
$(VENV)/.mutants: EXTRAS = mutants
$(VENV)/.matrix: EXTRAS = matrix
$(VENV)/.saas $(VENV)/.demo $(VENV)/.unit $(VENV)/.test $(VENV)/.check $(VENV)/.bench $(VENV)/.docs $(VENV)/.matrix $(VENV)/.mutants: pyproject.toml | $(VENV)/pyvenv.cfg
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	touch "$@"

clean:  ## what has been made here, the environment too
	if [ -f "$(VENV)/pyvenv.cfg" ]; then rm -rf "$(VENV)"; fi
	rm -rf build dist .coverage .coverage.* .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
