# make demo   start a daemon, ask it a question, show its cache, stop it
# make test   lint, then the tests
# make explore  the properties again, with fresh randomness
# make lint   ruff, mypy and the import rules
# make bench  compare with mlx_lm.server on one model (MODEL=folder; default: the demo's)
# make clean  remove what the others made
#
# The first of them makes the virtual environment; a change of pyproject.toml brings it up to date.

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL ?= $(or $(firstword $(wildcard .demo/models/*)),demo)

.PHONY: demo test explore lint bench clean

demo: $(STAMP)
	$(BIN)/python scripts/demo.py

test: lint
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile

# A property is a file that imports Hypothesis.
explore: $(STAMP)
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile \
		$$(grep -rl "^from hypothesis" tests --include="test_*.py")

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/mlxctl bench compare --model "$(MODEL)" --prefix-tokens 700

clean:
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		mlxceld.egg-info build dist
	find mlxceld mlxctl tests scripts -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml scripts/setup.sh
	sh scripts/setup.sh $(VENV)
	touch $(STAMP)
