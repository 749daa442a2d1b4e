# Everything runs in a virtual environment of this directory, made when it is first needed and again when
# pyproject.toml changes. Another interpreter: make test PYTHON=python3.12; another place: VENV=/tmp/venv.
PYTHON ?= python3
VENV ?= .venv
# Test processes side by side: most tests wait for beats and workers, so more than there are cores.
JOBS ?= 4
ARGS ?=

.PHONY: demo test clean

demo: $(VENV)/.installed  ## two beats and two workers, one of each killed
	$(VENV)/bin/python -m examples.ha_pair

test: $(VENV)/.installed  ## all tests; some of them: make test ARGS='tests/unit -x'
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv "$(VENV)"
	"$(VENV)/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch "$@"

clean:
	if [ -f "$(VENV)/pyvenv.cfg" ]; then rm -rf "$(VENV)"; fi
	rm -rf build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
