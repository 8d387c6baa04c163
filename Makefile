# `make test` and `make demo` set up everything they need in .venv, in either order.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q -n auto --dist loadfile
MODEL  ?= flux
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup test test-all lint types demo clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt .ci/torchvision_on_cpu.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev,evals,lm-eval,peers,quant,serve]"
	site=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") && \
		cp .ci/torchvision_on_cpu.py "$$site/_torchvision_on_cpu.py" && \
		echo "import _torchvision_on_cpu" > "$$site/_torchvision_on_cpu.pth"
	touch $@

test: setup
	$(PYTEST)

test-all: setup
	$(PYTEST) -m "slow or not slow"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

demo: setup
	$(BIN)/python scripts/demo.py --model $(MODEL)

clean:
	rm -rf $(VENV) outputs .pytest_cache .mypy_cache .ruff_cache
