PYTHON ?= python3
BIN := .venv/bin
# Stamps of what is installed in .venv: all that the commands need, what the site needs, and the developers' tools.
RUNTIME := .venv/.runtime
DOCS := .venv/.docs
TOOLS := .venv/.tools

.PHONY: help demo images quick test check docs release bench clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' Makefile

$(RUNTIME): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[train]'
	touch $@

$(DOCS): $(RUNTIME)
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	touch $@

$(TOOLS): $(RUNTIME)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: $(RUNTIME) ## train three losses on noisy labels, then draw every curriculum; all in demo/
	@$(BIN)/curriculoss compare ce mae mae:scale=2.6 --data digits-100 --noise symmetric:0.4 --out demo/runs
	@$(BIN)/python examples/demo.py demo demo/runs
	@$(BIN)/curriculoss losses > demo/losses.txt
	@$(BIN)/curriculoss losses --json > demo/losses.json
	@echo "every loss: demo/losses.txt, demo/losses.json"

images: demo ## update the README's figures; the explorer's needs Chromium
	cp demo/weights.png demo/dynamics.png docs/images/
	$(BIN)/curriculoss explore --out demo/explorer.html
	chromium --headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars \
	    --window-size=1200,1400 --screenshot=docs/images/explorer.png demo/explorer.html

# One thread per worker, since the workers share the cores. Tests of a group, as of the Ray cluster, share a worker.
quick: $(TOOLS) ## run the tests to run while editing, under a minute
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto -m "not slow"

test: $(TOOLS) ## run all tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadgroup

check: $(TOOLS) ## lint, formatting, types, import directions
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DOCS) ## build the documentation: docs/_build/html/index.html; warnings are errors
	rm -rf docs/_build docs/generated
	$(BIN)/sphinx-build -q -n -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

release: $(TOOLS) ## build wheel and sdist in dist/, install each extra alone, and test with the oldest torch allowed
	PYTHON=$(PYTHON) .ci/release

bench: $(TOOLS) ## time losses, the last layer, training and large audits, about twenty minutes
	$(BIN)/python -m benchmarks.losses
	$(BIN)/python -m benchmarks.linear
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.embeddings
	$(BIN)/python -m benchmarks.sweep

clean: ## remove everything that can be made again
	rm -rf .venv demo build dist docs/_build docs/generated .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
