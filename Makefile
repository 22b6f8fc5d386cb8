# Everything a person types. GNU make 3.81 (macOS) is enough; each target sets itself up.
# PYTHON=/path/to/python3 picks the interpreter of the virtual environment; ARGS="…" is handed to the tool.

VENV    = .venv
PY      = $(VENV)/bin/python
READY   = $(VENV)/.ready
LOCK    = requirements.lock
LOWEST  = build/lowest.lock
UV      = .venv-lock/bin/uv
RELEASE = .venv-release/bin
PYTEST  = $(PY) -m pytest -n auto --dist loadfile
TEST    = -m "not campaign and not check"
# Properties are tried in both tiers, here with more examples: tests/tiers.py.
CAMPAIGN = -m "campaign or hypothesis"

# The main job of `make run`.
RUN     = $(PY) -m orchestrator replay --bundled --live

# What must be covered to 95 %, lines and branches together and branches alone.
COVERED = orchestrator/kernel/*,orchestrator/machines/llm_loop/*,*/orchestrator_callbacks/llm_loop/*,*/orchestrator_guards/*

export PIP_DISABLE_PIP_VERSION_CHECK = 1
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run demo-approval demo-plan setup test test-python pythons test-lowest campaign check accept coverage mutants docs dashboards pictures bench bench-peers bench-features soak lock release clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

run: $(READY) ## set-up, then recorded conversations replayed through the state machine, and the console on a terminal
	@$(RUN) $(ARGS)
	@if [ -t 1 ] && [ -z '$(ARGS)' ]; then $(PY) -m orchestrator.examples.console_demo; fi

demo-approval: $(READY) ## a run that waits for a person is killed, approved elsewhere and resumed
	@$(PY) -m orchestrator.examples.approval_demo

demo-plan: $(READY) ## a plan is approved, killed half way, recovered, resumed, paused and taken back
	@$(PY) -m orchestrator.examples.plan_demo

setup: $(READY) ## virtual environment with the locked dependencies, nothing else

test: $(READY) ## set-up, then every behaviour once; about 3 minutes on 2 cores
	@$(PYTEST) $(TEST) $(ARGS)

test-python: ## `make test` on one version of Python; VERSION=3.14 uses Debian unstable where no such interpreter is installed
	@.ci/test-python $(VERSION) $(if $(ARGS),ARGS="$(ARGS)")

pythons: $(READY) ## every tier on every supported version of Python, and the table of counts; ARGS="--versions 3.13 --tiers test"
	@$(PY) -m tests.pythons $(ARGS)

test-lowest: $(LOWEST) ## `make test` with the lowest supported version of each dependency
	@$(MAKE) --no-print-directory test VENV=.venv-lowest LOCK=$(LOWEST)

campaign: $(READY) ## crashes, processes, mutations, and properties with more examples; about 11 minutes
	@TEST_TIER=campaign $(PYTEST) $(CAMPAIGN) $(ARGS)

check: $(READY) ## lint, format, types, links, and the tests that read sources and guides: layers, names, prose
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m tests.documentation build/docs
	$(PY) -m pytest -q -m "check and not campaign" $$(grep -lE '^(pytestmark = |@)pytest.mark.check' tests/contract/test_*.py)

accept: $(READY) ## tables, diagrams, dashboards and exports that are derived from the code written anew
	@$(PY) -m tests.accept

coverage: $(READY) ## branch coverage of the kernel, the heart and the guards
	@rm -f .coverage .coverage.*
	TEST_TIER=campaign $(PY) -m coverage run -m pytest -n auto --dist loadfile -m "not bench" $(ARGS)
	@$(PY) -m coverage combine --quiet
	$(PY) -m coverage report --include='$(COVERED)' --fail-under=95
	@$(PY) -m coverage json --quiet --include='$(COVERED)' -o .coverage.json
	@$(PY) -c 'import json; t = json.load(open(".coverage.json"))["totals"]; \
	percent = 100 * t["covered_branches"] / (t["num_branches"] or 1); \
	print(f"branches alone: {percent:.1f} %"); raise SystemExit(percent < 95)'

mutants: $(READY) ## a sample of small changes of the source, and those that no test detects; ARGS="--seed 7 --sample 20"
	@$(PY) -m tests.mutants $(ARGS)

docs: $(READY) ## the documentation site with the API reference, into build/docs
	@$(PY) -m tests.documentation build/docs
	@echo "written: build/docs/index.html; orchestrator docs --open shows it"

dashboards: $(READY) ## dashboards/ written anew, and its pictures taken from the live test
	@$(PY) -m orchestrator ops export dashboards
	@ORCHESTRATOR_PICTURES="$(CURDIR)/dashboards" $(PY) -m pytest -q -n 0 -s tests/dashboards/test_live.py tests/dashboards/test_live_hidden.py $(ARGS)

pictures: $(READY) ## the pictures of drawings and console in the guides, taken anew in a browser; 5 minutes
	@DRAWING_PICTURES=1 CONSOLE_PICTURES=1 $(PY) -m pytest -q -n 0 tests/drawing/test_pictures.py tests/console/test_browser.py \
	    -k "can_be_read or fits_its_window" $(ARGS)

bench: $(READY) ## measured figures, as ratios to a hand-written loop; journalled turns and resume beside LangGraph
	$(PY) -m tests.benchmarks --environments $(VENV)/peers $(ARGS)

bench-peers: $(READY) ## the same work by seven libraries, each in an environment of its own; about 15 minutes
	$(PY) -m tests.benchmarks.peers --environments $(VENV)/peers $(ARGS)

bench-features: $(READY) ## which features ours and four libraries have, each tried by code; about 2 minutes
	$(PY) -m tests.benchmarks.peers.features --environments $(VENV)/peers $(ARGS)

soak: $(READY) ## every test, campaigns at full size
	ORCHESTRATOR_SOAK=1 $(PYTEST) --timeout=7200 $(ARGS)

lock: $(UV) ## requirements.lock from pyproject.toml; ARGS=--upgrade moves every pin
	$(UV) pip compile pyproject.toml --quiet --universal --python-version 3.11 \
	    --extra all --group test --group lint \
	    --generate-hashes --no-emit-index-url --no-emit-package fsm-orchestrator \
	    --no-header --no-annotate --output-file requirements.lock $(ARGS)

release: $(READY) $(UV) $(RELEASE) ## a dry run: the distribution built twice, checked, installed, with an SBOM and hashes, in dist/; SIGNING_KEY=FILE signs
	@$(PY) -m tests.release $(RELEASE) $(UV)

# The lowest versions of what we depend on; the tools of the tests are the newest that go with them.
# The adapters of vendors that the tests use raise some of those.
$(LOWEST): pyproject.toml $(UV)
	@mkdir -p $(@D)
	@echo 'pydantic-ai-slim[bedrock,google,groq,mistral]' > $@.in
	@$(UV) pip compile pyproject.toml $@.in --quiet --python-version 3.11 --extra all --resolution lowest-direct \
	    --no-emit-index-url --no-emit-package fsm-orchestrator --no-header --no-annotate --output-file $@.constraints
	@$(UV) pip compile pyproject.toml --quiet --python-version 3.11 --extra all --group test --group lint \
	    --generate-hashes --constraints $@.constraints --no-emit-index-url --no-emit-package fsm-orchestrator \
	    --no-header --no-annotate --output-file $@

clean: ## everything that make made
	rm -rf $(VENV) .venv-* build dist htmlcov .coverage .coverage.* \
	    .mutants .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is kept across runs and brought up to date when a dependency or an entry point changes.
# A link to an interpreter that is gone is the same as no environment.
# Without --no-deps pip resolves what the lock has resolved, and refuses the pin of a library that another one asks for
# with an extra as soon as a newer version is released.
$(READY): $(LOCK) pyproject.toml
	@$(PY) -m pip --version >/dev/null 2>&1 || { $(FIND_PYTHON); \
	    echo "set-up: $(VENV) with $$found" >&2; "$$found" -m venv --clear $(VENV); }
	@echo "set-up: dependencies from $(LOCK)" >&2
	@$(PY) -m pip install --quiet --no-deps --require-hashes -r $(LOCK)
	@$(PY) -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(RELEASE): $(UV)
	@$(UV) venv --quiet --clear --python $(PY) .venv-release
	@$(UV) pip install --quiet --python .venv-release "cyclonedx-bom>=7" "twine>=6"

$(UV):
	@$(FIND_PYTHON); "$$found" -m venv --clear .venv-lock
	@.venv-lock/bin/python -m pip install --quiet uv

# Sets $$found. A name may exist and not run (a version manager's shim), so each is asked.
FIND_PYTHON = found=; for candidate in $(PYTHON) python3.15 python3.14 python3.13 python3.12 python3.11 python3; do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	    then found=$$candidate; break; fi; done; \
	if test -z "$$found"; then \
	    echo "No Python 3.11 or newer found: install one, or name one with PYTHON=/path/to/python3." >&2; \
	    exit 1; fi
