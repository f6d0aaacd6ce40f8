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

demo: $(INSTALLED) ## train three losses on noisy labels, then draw every curriculum; all in demo/
	@$(BIN)/curriculoss compare ce mae mae:scale=2.6 --data digits-100 --noise symmetric:0.4 --out demo/runs
	@$(BIN)/python examples/demo.py demo demo/runs
	@$(BIN)/curriculoss losses > demo/losses.txt
	@$(BIN)/curriculoss losses --json > demo/losses.json
	@echo "every loss: demo/losses.txt, demo/losses.json"

images: demo ## bring the README's pictures up to date
	cp demo/weights.png demo/dynamics.png docs/images/

# One thread a worker: the workers share the cores already.
test: $(INSTALLED) ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

check: $(INSTALLED) ## lint, formatting, types, import directions
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED) ## time losses, the last layer, training and large audits, some twenty minutes
	$(BIN)/python -m benchmarks.losses
	$(BIN)/python -m benchmarks.linear
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.embeddings

clean: ## remove all that can be made again
	rm -rf .venv demo build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
