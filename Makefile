# make demo   try SynthER on the replay data that comes with it
# make test   everything a change must pass: ruff, mypy, pytest
# make lint   ruff and mypy alone
# make docs   the documentation as build/docs/index.html; it runs the tutorials, about ten minutes on two cores
# make dist   the wheel and the source archive, checked, in dist/
# make pixels results/pixels from nothing, in synther-pixels: hours, with a GPU and a renderer; started again it goes on
# make clean  remove what these made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PINS := pyproject.toml constraints.txt
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-compile -c constraints.txt

.PHONY: demo test lint docs dist pixels clean
.DELETE_ON_ERROR:

demo: $(VENV)/.core
	$(BIN)/synther upsample hopper-sac --samples 100K --out synther-demo

# Python may cache what it compiles: the suite starts many processes, and each of them would compile the package again.
test: lint
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.full
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(VENV)/.full
	SYNTHER_DOCS_EXECUTE=1 $(BIN)/python -m sphinx -W --keep-going -b html -c docs . build/docs

dist: $(VENV)/.full
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

PIXELS := synther-pixels
STEPS := 100K
MEDIUM := 30000
FRAMES := 20K
# Less of everything, to see that it works: make pixels STEPS=2K MEDIUM=1000 KEEP='--checkpoint-every 1K --keep-every 1K' \
#   FRAMES=1K SMALL='--updates 30 --seeds 2 --samples 2K --preset laptop --fit-steps 100'
KEEP := --keep-every 10K
SMALL :=

pixels: $(foreach level,expert medium-expert,$(PIXELS)/frames/cheetah-run-$(level).hdf5)
	$(BIN)/synther paper run pixels --only cheetah-run-expert cheetah-run-medium-expert \
	  --data $(PIXELS)/frames --out $(PIXELS)/paper $(SMALL)
	$(BIN)/synther paper table pixels --out $(PIXELS)/paper

# An agent of states, and frames of what it does, as V-D4RL defines the levels.
$(PIXELS)/agent/result.json: | $(VENV)/.full
	$(BIN)/synther online dm_control/cheetah-run-v0 --utd 20 --synthetic --steps $(STEPS) $(KEEP) --seeds 1 --out $(@D)

$(PIXELS)/frames/cheetah-run-expert.hdf5: $(PIXELS)/agent/result.json
	$(BIN)/synther collect dm_control/cheetah-run-v0 --pixels --stochastic --steps $(FRAMES) --out $@ \
	  --policy $(PIXELS)/agent/checkpoint.safetensors

$(PIXELS)/frames/cheetah-run-medium-expert.hdf5: $(PIXELS)/agent/result.json
	$(BIN)/synther collect dm_control/cheetah-run-v0 --pixels --stochastic --steps $(FRAMES) --out $@ \
	  --policy $(PIXELS)/agent/kept/$(MEDIUM).safetensors $(PIXELS)/agent/checkpoint.safetensors

clean:
	rm -rf $(VENV) synther-demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The package builds with the pinned setuptools of the environment itself, so that a build brings nothing else along.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "SynthER needs Python 3.11 or newer. Name one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make a virtual environment: install its venv module" >&2; exit 1; }
	@$(INSTALL) setuptools
	@touch $@

$(VENV)/.core: $(VENV)/.python $(PINS)
	@echo "installing SynthER into $(VENV), about a minute, only this once"
	@$(INSTALL) --no-build-isolation -e .
	@touch $@

# A full environment holds the core one too, in whichever order they are asked for.
$(VENV)/.full: $(VENV)/.python $(PINS)
	@echo "installing SynthER with every extra into $(VENV), three or four minutes, only this once"
	@$(INSTALL) --no-build-isolation -e '.[all,tabular,docs,dev]'
	@# Once, on all cores: the suite starts many processes, and each would compile what it imports. Some files are templates.
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true
	@touch $(VENV)/.core $@
