# make demo and make test are all that a fresh machine with Python 3.10+ and pip needs.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready-$(shell cat pyproject.toml constraints.txt | sha256sum | cut -c1-16)
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

BROWSER := chromium fonts-wqy-microhei fonts-symbola
SUDO    := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
HOSTS   := lmms-eval vlmeval

export HF_HUB_OFFLINE := 1

.PHONY: pocket demo parity test test-fast test-hosts test-vllm test-floor test-floor-slice test-all lint browser docs docs-serve cards notebooks gallery setup bench clean coverage wheel hooks
.DEFAULT_GOAL := help

help: ## What there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

pocket: $(READY) ## Train the pocket model from nothing: some 90 minutes on two cores, resumes
	$(BIN)/python -m training

demo: $(READY) ## Ask the pocket model with all tokens and with few, write a picture
	$(BIN)/eadp demo

test: lint browser ## Lint, types and all tests
	$(BIN)/python -m pytest -n 2

test-fast: $(READY) browser ## The tests that take no more than a few seconds each
	$(BIN)/python -m pytest -n 2 -m "not slow"

# The checkout stands in front of each host's packages; src/eadp.egg-info in it, made by $(READY), carries the entry points.
test-hosts: $(READY) ## The real lmms-eval and VLMEvalKit on the pocket model, each in an environment of its own
	@for host in $(HOSTS); do \
		echo "$$host" && env=$$(PYTHON=$(PYTHON) hosts/env $$host) && \
		PYTHONPATH=$(CURDIR)/src:$(CURDIR)/hosts/shim OMP_NUM_THREADS=1 \
		$$env/bin/python -m pytest --confcutdir tests/hosts tests/hosts/$$host || exit 1; \
	done

test-vllm: $(READY) ## The vLLM plugin in vLLM's own environment, which is made once (a large download)
	PYTHONPATH=src "$$(hosts/env vllm)/bin/python" -m pytest -p no:cacheprovider tests/vllm

# What the declared floors have to carry: the selection on numba, every family, the attach matrix and the methods.
FLOOR_TESTS := tests/core tests/models tests/runtime tests/methods
FLOOR_SLICE := tests/core/test_facility.py tests/models tests/runtime/test_attach.py
FLOOR = PYTHONPATH=src OMP_NUM_THREADS=1 "$$(PYTHON=$(PYTHON) hosts/env floor)/bin/python" -m pytest -p no:cacheprovider -n 2

test-floor: ## The attach matrix, the methods and the core on the oldest versions declared, in an environment of their own
	$(FLOOR) $(FLOOR_TESTS)

test-floor-slice: ## The part of test-floor that CI runs
	$(FLOOR) $(FLOOR_SLICE)

test-all: test test-hosts test-vllm test-floor ## Everything: the main tests, the harnesses, vLLM and the floor

lint: $(READY) ## ruff, mypy and the walls between the folders
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

browser: ## Debian's Chromium and fonts for the tests in a real browser, where they are missing
	@dpkg -s $(BROWSER) >/dev/null 2>&1 || { $(SUDO) apt-get -qq update && \
	  $(SUDO) apt-get -qq install -y --no-install-recommends $(BROWSER); } >/dev/null

# Warnings and dead links inside the site are errors. check_site.py also checks images, navigation and outside hosts.
docs: $(READY) ## Build the documentation site into out/site (needs Python 3.11 or newer)
	$(BIN)/zensical build --clean --strict
	$(BIN)/python scripts/check_site.py out/site

docs-serve: $(READY) ## Serve the documentation site locally and rebuild it when a page changes
	$(BIN)/zensical serve

cards: $(READY) ## Write the cards of the methods, docs/methods/NAME.md, again
	$(BIN)/python benchmarks/cards.py

notebooks: $(READY) ## Run the notebooks and write their pages, docs/start/*.md, again
	$(BIN)/python scripts/notebook_pages.py

gallery: $(READY) ## Draw docs/guides/gallery.md and its images again
	$(BIN)/python benchmarks/gallery.py

VECTORS ?= tests/golden
parity: $(READY) ## Replay golden vectors of the releases, write docs/methods/parity.md's table; VECTORS=folder for others
	$(BIN)/python benchmarks/parity.py $(VECTORS)

bench: $(READY) ## The selection benchmark, beside its peers
	$(PIP) -e ".[peers]"
	$(BIN)/python benchmarks/selection.py

coverage: $(READY) browser ## All tests, with the lines and branches they miss: on screen and in out/coverage/index.html
	@mkdir -p out/coverage
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term --cov-report=html

wheel: $(READY) ## Build sdist and wheel into dist, check them, run the demo from a clean environment
	$(BIN)/python check_wheel.py

hooks: $(READY) ## Check each commit with ruff and mypy (needs pre-commit)
	@command -v pre-commit >/dev/null || { echo "pre-commit is not installed; install it with: pipx install pre-commit" >&2; exit 1; }
	pre-commit install

setup: $(READY) ## The environment, made once and anew when its pins change

# torch first and by its pin: asked for without one it comes with gigabytes of CUDA.
$(READY):
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e ".[dev]"
	@touch $@

clean: ## Remove the environment and what the tools left
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis out
