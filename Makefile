# make demo    compiles an example model and shows what each pass did
# make test    runs the tests
# make test-browser  runs the tests of the report's page in Chromium, which it installs where it is missing
# make explorer  builds the report's page from explorer/, with Node
# make patterns  traces the search functions of the package's patterns, and stores what they give
# make lint    lint, format check, type check
# make bench   measures idle passes, looking on, ahead-of-time autograd, patterns, calls, kernels, pre-grad and joint passes, the partition, attention and padding, beside torch's own

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# bf16 matmul through oneDNN dies on CPUs that advertise AMX but cannot use it.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE

.PHONY: demo test test-slow test-browser explorer lint format patterns bench clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m slow

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

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt "torch==2.13.0"
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) explorer/node_modules build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
