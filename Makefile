# Two commands set everything up on a fresh machine: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: demo test test-all slow field-gpu corpus healthy bench zoo docs examples dist fmt lint type page clean help

help:
	@echo "make demo      train a small model, then diagnose a sick script"
	@echo "make test      lint, types and the fast tests (under 15 minutes on 2 cores)"
	@echo "make test-all  the slow and the GPU tests as well (pages are tested where Chromium is installed)"
	@echo "make field-gpu the programs of tests/field on this machine's GPU, plain and attached (needs torch with CUDA)"
	@echo "make corpus    run every training script of corpus/ and print hits, misses, false alarms"
	@echo "make healthy   attach to every sound run (corpus and zoo): false alarms, docs/healthy.md (an hour or two on 2 cores)"
	@echo "make bench     the CPU benchmarks"
	@echo "make zoo       every architecture of transformers, plain and attached: the same run? (an hour or two on 2 cores)"
	@echo "make docs      generate pages and build the site into build/site"
	@echo "make examples  run the smallest script of every cause again and keep its verdict (some twenty minutes on 2 cores)"
	@echo "make dist      wheel and sdist into dist/, checked"
	@echo "make fmt lint type page"

.venv/base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt torch numpy
	$(BIN)/pip install -q -c constraints.txt -e .
	@touch $@

.venv/dev: .venv/base
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

demo: .venv/base
	$(BIN)/traindoctor train --preset demo --out runs/demo --overwrite
	@echo "== the same kind of run, sick: a loss kernel whose backward pass forgets the mean's 1/N"
	$(BIN)/traindoctor run --out runs/demo-sick examples/case_study/program.py --variant kernel

test: lint type .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not slow"

test-all: lint type .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

slow: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m slow

# Uses the Python that has torch with CUDA, not the environment of the tests: make field-gpu PYTHON=python3.12
field-gpu:
	$(PYTHON) tests/field/on_gpu.py --jobs 8 --out field-gpu.txt

corpus: .venv/dev
	$(BIN)/python corpus/run.py

healthy: .venv/dev
	$(BIN)/python corpus/healthy.py --jobs $(JOBS)
	$(BIN)/python corpus/healthy.py --table docs/healthy.md

bench: .venv/dev
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

zoo: .venv/dev
	$(BIN)/python benchmarks/zoo/run.py --jobs $(JOBS)
	$(BIN)/python benchmarks/zoo/run.py --table docs/zoo.md

docs: .venv/dev
	$(BIN)/python -m traindoctor.cli.docs docs/checks examples/causes
	$(BIN)/python tools/messages.py docs/messages.md
	$(BIN)/python tools/thresholds.py docs/thresholds.md
	$(BIN)/python tools/pages.py docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

examples: .venv/dev
	$(BIN)/python tools/examples.py

dist: .venv/dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

fmt: .venv/dev
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: .venv/dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell src tests docs benchmarks examples README.md

type: .venv/dev
	$(BIN)/mypy

page:
	# Not `npm ci`: the lock file names the compilers of Linux alone, which it refuses.
	cd page && npm install --include=dev && NODE_ENV=production npm run build

clean:
	rm -rf .venv build dist runs
