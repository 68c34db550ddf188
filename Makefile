# `make quickstart` and `make test` need a package index and Python 3.11 or newer (or uv, which can fetch one), nothing else.
# PYTHON=python3.12 names an interpreter. TORCH_INDEX names an index to take torch from, for instance where there is no GPU:
#   make quickstart TORCH_INDEX=https://download.pytorch.org/whl/cpu
export PYTHON TORCH_INDEX
VENV ?= .venv
BIN := $(VENV)/bin

SINCE ?=

.PHONY: quickstart test test-fast test-machine test-engine test-long test-release test-gpu check format docs venv dev lock wheel clean

# A few seconds of measurement, and `gpas run` says before it starts how long the cells take on this machine.
quickstart: venv
	$(BIN)/gpas bench quickstart --seconds 3
	$(BIN)/gpas run grid quickstart --executor local --yes
	$(BIN)/gpas table quickstart --paper

test: dev
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

# The tests of what has changed since the last commit, or since the commit that SINCE names: those of its rooms, and
# those that import its files.
test-fast: dev
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal $$($(BIN)/python tools/touched.py $(SINCE))

# The part of `make test` that is skipped without root and a SLURM cluster.
test-machine: dev
	$(BIN)/python -m pytest -m 'machine and not long and not release'

# The engine alone: the tests that need no torch, on a copy without gpas_cli/extensions. What needs one is skipped.
test-engine: dev
	rm -rf build/engine && mkdir -p build/engine
	git ls-files -z | grep -zv ^gpas_cli/extensions/ | tar --null --files-from - -c | tar -x -C build/engine
	cd build/engine && PYTHONPATH=$$PWD $(abspath $(BIN))/python -m pytest -n logical --maxprocesses 4 --dist worksteal \
		--ignore tests/extensions $(addprefix tests/,cli grid origin plan report results spec state statistics store)
	rm -rf build/engine

# What takes long, most of it on real SLURM clusters, one for each worker: python3 tools/cluster.py install full
test-long: dev
	$(BIN)/python -m pytest -m 'long and not release' -n 3 --dist loadfile --no-loadscope-reorder --durations 10

# What takes longer still: every choice of the shipped grids, lowest versions and other Pythons, ten minutes of chaos.
test-release: dev
	$(BIN)/python -m pytest -m release -n 3 --dist loadfile --durations 10
	$(BIN)/python tools/chaos.py --minutes 10 --seed 1

# The tests of networks and trainings on a GPU, which `make test` does not use.
test-gpu: dev
	TEST_ON_GPU=1 $(BIN)/python -m pytest tests/model tests/train tests/evaluate tests/extensions/test_extensions_networks*.py \
	  tests/extensions/test_extensions_harness.py -n logical --maxprocesses 4 --dist loadfile

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site in site/. A warning, such as a link that leads nowhere, is an error.
docs: dev
	@tools/install.sh $(VENV) docs
	$(BIN)/mkdocs build --strict --quiet --clean

# What runs experiments and draws their figures.
venv:
	@tools/install.sh $(VENV) figures

# What tests and checks need in addition.
dev: venv
	@tools/install.sh $(VENV) figures,dev

# uv.lock, with UPGRADE=1 of the newest versions, and constraints.txt, which has its versions for pip. CUDA's are left out there:
# they are those of torch's index.
lock:
	uv lock $(if $(UPGRADE),--upgrade)
	{ echo '# Made from uv.lock by `make lock`: the versions that this project is tested with.'; \
	uv export --quiet --locked --all-extras --no-hashes --no-annotate --no-header --no-emit-project | \
	grep -vE '^(cuda|nvidia|triton)'; } >constraints.txt

wheel: dev
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
