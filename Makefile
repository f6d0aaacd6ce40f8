PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help demo images test check bench clean

help: ## say what there is to make
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' Makefile

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: $(INSTALLED) ## write figures and a table of every curriculum to demo/
	@$(BIN)/python examples/demo.py demo
	@$(BIN)/curriculoss losses > demo/losses.txt
	@$(BIN)/curriculoss losses --json > demo/losses.json
	@cat demo/losses.txt
	@echo "figures: demo/weights.png, demo/fixes.png; the table above: demo/losses.txt, demo/losses.json"

images: demo ## bring the README's picture up to date
	cp demo/weights.png docs/images/

# One thread a worker: the workers share the cores already.
test: $(INSTALLED) ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

check: $(INSTALLED) ## lint, formatting, types, import directions
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED) ## time every loss against cross entropy, some ten minutes
	$(BIN)/python -m benchmarks.losses
	$(BIN)/python -m benchmarks.linear

clean: ## remove all that can be made again
	rm -rf .venv demo build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
