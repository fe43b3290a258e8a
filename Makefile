# make demo    compiles an example model, shows what each pass did, and writes a report
# make test    runs the tests, and prints the slowest ones
# make test-fast  runs some tests of every package, in less than 3 minutes on 2 cores: tests/fast.py lists them
# make fuzz    compares random programs with eager for SECONDS (600) on ENGINE (aten), and shrinks what differs
# make test-browser  runs the tests of the report's page in Chromium, and installs it if it is missing
# make explorer  builds the report's page from explorer/, with Node
# make patterns  traces the search functions of the built-in patterns, and stores the patterns
# make manual  writes the pages of the passes, docs/passes, from the code
# make docs    builds the manual as a site, build/site/index.html
# make lint    lint, format check, type check
# make bench   measures, compared to torch: idle passes, observers, ahead-of-time autograd, patterns, calls, kernels, the passes of each stage, the partition, memory budgets, attention, padding and first steps

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs_installed
# bf16 matmul through oneDNN crashes on CPUs that advertise AMX but cannot use it.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE

.PHONY: demo test test-fast test-slow fuzz test-browser explorer lint format patterns manual docs bench clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow" --durations=15

test-fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow" $$($(BIN)/python tests/fast.py)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m slow

SECONDS ?= 600
ENGINE ?= aten

fuzz: $(STAMP)
	PYTHONPATH=tests nice $(BIN)/python -m fuzz --seconds $(SECONDS) --engine $(ENGINE) --log build/fuzz.log

test-browser: $(STAMP)
	command -v chromium || command -v google-chrome || apt-get install -y chromium
	$(BIN)/pip install -q -c constraints.txt -e ".[browser]"
	$(BIN)/python -m pytest tests/explorer

explorer:
	cd explorer && npm ci --no-fund --no-audit && npm run check && npm run build

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

patterns: $(STAMP)
	$(BIN)/python -m eductor.patterns.precompile

manual: $(STAMP)
	$(BIN)/python -m eductor.observe.manual.manual_pages docs/passes

docs: $(DOCS_STAMP)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/site

bench: $(STAMP)
	$(BIN)/python bench/idle_pipeline.py
	$(BIN)/python bench/observing.py
	$(BIN)/python bench/autograd.py
	$(BIN)/python bench/patterns.py
	$(BIN)/python bench/calls.py
	$(BIN)/python bench/kernels.py
	$(BIN)/python bench/pre_grad.py --stage-cost
	$(BIN)/python bench/pre_grad.py
	$(BIN)/python bench/joint.py
	$(BIN)/python bench/partition.py
	$(BIN)/python bench/post_grad.py
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/attention.py
	$(BIN)/python bench/pad_mm.py
	$(BIN)/python bench/cold_start.py --only gpt2 --depths 6,24 --rounds 1

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt "torch==2.13.0"
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	touch $(STAMP)

$(DOCS_STAMP): $(STAMP)
	$(BIN)/pip install -q -c constraints.txt -e ".[docs]"
	touch $(DOCS_STAMP)

clean:
	rm -rf $(VENV) explorer/node_modules build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
