# Shortcuts for a checkout. They use the environment in $(VENV), which `make build` makes.

VENV ?= .venv
ARGS ?=
RESULT ?= $(if $(findstring --quick,$(ARGS)),quick,latest)
export PATH := $(abspath $(VENV))/bin:$(PATH)

.PHONY: build test bench lint docs demo clean

build: | $(VENV)
	python -m pip install -e '.[test,lint,docs]'

$(VENV):
	python3 -m venv $(VENV)

test:
	python -m pytest $(ARGS)

# Everything, about an hour; ARGS=--quick takes minutes, ARGS=--resume continues after an interruption.
bench:
	python bench/bench_conv.py --output bench/results/$(RESULT).jsonl $(ARGS)
	python bench/chart.py bench/results/$(RESULT).jsonl --output bench/results/$(RESULT).png
	python bench/roofline.py bench/results/$(RESULT).jsonl --output bench/results/$(RESULT)-roofline.png

lint:
	ruff check .
	ruff format --check .
	cython-lint src
	mypy

docs:
	python -m sphinx -W --keep-going -b html docs docs/_build/html

demo:
	python -m cyconv demo $(ARGS)

clean:
	rm -rf build dist src/*.egg-info docs/_build docs/api/generated
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f src/cyconv/kernels/*.c src/cyconv/kernels/*.so
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
