# Verbs of the project; CI runs the same ones. `make demo` and `make test` work in a fresh clone.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The tests start hundreds of processes, which would compile the code again each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test check fmt lint types mypy pyright proto check-proto audit wheel clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "InfiniPipe needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[planner,executor,dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/python examples/demo/run.py

# Two files at a time, the long ones, which come first, at the start; what is marked `alone` or `e2e` follows by itself,
# whatever became of the others. A worker that hangs or crashes ends its run: another one would only start the same file
# again.
PARALLEL := --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: setup
	status=0; \
	$(BIN)/python -m pytest $(PARALLEL) -m "not alone and not e2e" || status=1; \
	$(BIN)/python -m pytest -m "alone or e2e" || status=1; \
	exit $$status

check: lint types check-proto audit test wheel

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/buf lint

# Beside each other; each tells what it found at its end.
types: setup
	@$(MAKE) --no-print-directory --keep-going --jobs 2 mypy pyright

mypy: setup
	$(BIN)/mypy

pyright: setup
	$(BIN)/pyright --warnings

# Generated code is committed; only the service has stubs.
PROTO_DIR := infinipipe/planner/v1
define generate
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=$(1) --pyi_out=$(1) protos/$(PROTO_DIR)/*.proto
	$(BIN)/python -m grpc_tools.protoc -I protos --grpc_python_out=$(1) protos/$(PROTO_DIR)/planner_service.proto
endef

proto: setup
	$(call generate,protos)

# Generated code is what the protos say, and loads under the oldest and the newest protobuf that the pins allow.
check-proto: setup
	@rm -rf build/proto && mkdir -p build/proto
	$(call generate,build/proto)
	@for file in build/proto/$(PROTO_DIR)/*; do \
		diff -u protos/$(PROTO_DIR)/$$(basename $$file) $$file || { echo "generated code is stale: run make proto"; exit 1; }; \
	done
	@for version in 6.31.1 7.36.2; do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/protobuf-$$version protobuf==$$version && \
		(cd / && $(abspath $(BIN))/python -I -c "import sys; sys.path[:0] = ['$(abspath build)/protobuf-$$version', '$(abspath protos)']; \
		import google.protobuf; from infinipipe.planner.v1 import planner_service_pb2; \
		assert google.protobuf.__version__ == '$$version', google.protobuf.__version__; print('generated code loads under protobuf $$version')") || exit 1; \
	done

# Known vulnerabilities of the pinned versions; skipped, aloud, where no database can be reached.
audit: setup
	$(BIN)/python .ci/audit.py

# The wheel works in a clean environment, installed as the images are: the planner without torch, then the executor.
wheel: setup
	@rm -rf build/wheel build/wheel-venv && mkdir -p build/wheel
	$(BIN)/python -m build --wheel --outdir build/wheel .
	$(PYTHON) -m venv build/wheel-venv
	PYTHON=build/wheel-venv/bin/python deploy/docker/install.sh "$$(ls build/wheel/*.whl)" planner
	! build/wheel-venv/bin/python -c "import torch" 2> /dev/null
	cd / && $(abspath build/wheel-venv)/bin/python -c "import infinipipe_contract, infinipipe_planner.server, infinipipe_planner.cli"
	cd / && $(abspath build/wheel-venv)/bin/infinipipe --help > /dev/null
	cd / && $(abspath build/wheel-venv)/bin/python -c "from importlib.resources import files; [(files('infinipipe_planner.report_page') / name).read_text() for name in ('page.css', 'page.js')]"
	PYTHON=build/wheel-venv/bin/python deploy/docker/install.sh "$$(ls build/wheel/*.whl)" executor
	cd / && $(abspath build/wheel-venv)/bin/python -c "import infinipipe_executor.trainer, infinipipe_kernels"
	@rm -rf build/wheel-venv && echo "the wheel installs and imports in a clean environment"

clean:
	rm -rf $(VENV) build dist .demo
