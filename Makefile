# Every target sets up what it needs, without root: `make parity` on a fresh machine needs python3, g++ and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
REPORT ?= out/parity.json
# Processes that cases and mutants run in.
JOBS ?= $(shell nproc)
# `make mutants MUTANTS_REPORT=reports/ptx.json` renews the committed one.
MUTANTS_REPORT ?= out/mutants.json
# On a GPU machine the Python that has torch and cuda-python; the default installs them.
GPU_PYTHON ?= $(BIN)/python
# `make cutlass CUTLASS_BUILDS=all` builds and proves all eight builds of CUTLASS's kernel, not only the one of servers.
CUTLASS_BUILDS ?= one
# `make cutlass CUTLASS_BUILDS=all CUTLASS_REPORT=reports/cutlass.json` renews the committed one.
CUTLASS_REPORT ?= out/cutlass.json

PARITY_one := --arch sm_121a
PARITY_all := --level full

.PHONY: help parity cutlass full mutants drift notebooks test test-gpu lint gate baseline readme pictures bench clean

help:
	@echo "make parity    prove the production kernels on this machine, without a GPU, and write $(REPORT)"
	@echo "make cutlass   build CUTLASS's own grouped GEMM and prove it here, with its mutants (minutes, 6 GB); its time is in make bench"
	@echo "make test      run the tests"
	@echo "make full      parity with every case, on every architecture (minutes)"
	@echo "make mutants   plant faults in the kernels and show that each is caught"
	@echo "make drift     paths side by side over decode steps: reports/drift.json and docs/drift.png, 64 steps of four paths"
	@echo "make notebooks execute the notebooks into out/notebooks, with their pictures"
	@echo "make test-gpu  the whole case list and the GPU tests on the CUDA device of this machine"
	@echo "make gate      check the committed reports against the sources"
	@echo "make bench     the benchmarks, each side by side in one run, into reports/bench"
	@echo "make lint      ruff and mypy"

# --- environment ----------------------------------------------------------------------------------------------------

$(VENV)/.core: pyproject.toml
	@# pip and not python: a Python without ensurepip leaves the one and not the other.
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(PIP) install --editable .
	@# nvcc of CUDA_HOME or PATH serves; only a machine without one downloads the compiler (270 MB).
	$(BIN)/python -c "from refmoe.cuda import toolchain; toolchain.find_toolchain()" 2>/dev/null \
		|| $(PIP) install --editable '.[nvcc]'
	touch $@

# torch comes first and by exact version: left to the packages that need it, pip takes the newest with all of CUDA.
$(VENV)/.test: $(VENV)/.core
	$(PIP) install torch==2.13.0
	$(PIP) install --editable '.[oracles,test]'
	touch $@

$(VENV)/.cutlass: $(VENV)/.core
	$(PIP) install --editable '.[cutlass]'
	touch $@

$(VENV)/.lint: $(VENV)/.core
	$(PIP) install --editable '.[lint]'
	touch $@

$(VENV)/.notebooks: $(VENV)/.core
	$(PIP) install --editable '.[notebooks]'
	touch $@

$(VENV)/bin/python: $(VENV)/.core

# --- proofs ---------------------------------------------------------------------------------------------------------

parity: $(VENV)/.core
	$(BIN)/refmoe parity --jobs $(JOBS) --report $(REPORT)

cutlass: $(VENV)/.cutlass
	@test -n "$(PARITY_$(CUTLASS_BUILDS))" || { echo "CUTLASS_BUILDS: found $(CUTLASS_BUILDS); needed one or all"; exit 2; }
	$(BIN)/refmoe cutlass --build $(CUTLASS_BUILDS)
	$(BIN)/refmoe parity --jobs $(JOBS) --suite cutlass_gemm $(PARITY_$(CUTLASS_BUILDS)) --mutants --report $(CUTLASS_REPORT)

full: $(VENV)/.cutlass $(VENV)/.test
	$(BIN)/refmoe parity --jobs $(JOBS) --level full --report out/full.json
	@# What is said of the tiles that CUTLASS refuses, confirmed by its own static assertions.
	REFMOE_CUTLASS_BUILD=1 $(BIN)/python -m pytest tests/museum/cutlass/test_host_builds.py

mutants: $(VENV)/.core
	$(BIN)/refmoe parity --jobs $(JOBS) --mutants --report $(MUTANTS_REPORT)

drift: $(VENV)/.core
	$(BIN)/refmoe drift --report reports/drift.json --plot docs/drift.png

# Copies are executed, so that the ones in notebooks/ stay without outputs.
notebooks: $(VENV)/.notebooks
	rm -rf out/notebooks && mkdir -p out && cp -r notebooks out/notebooks
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=300 --overwrite --durations=0 out/notebooks

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto --junitxml=out/tests.xml

test-gpu: $(GPU_PYTHON)
	$(GPU_PYTHON) -m refmoe.cli parity --device cuda --level full --jobs 8 --report reports/h200.json
	$(GPU_PYTHON) -m refmoe.cli conformance --device cuda --report reports/bench/conformance.json
	$(GPU_PYTHON) -m refmoe.cli stress --device cuda --report reports/stress.json
	$(GPU_PYTHON) -m refmoe.cli bench gpu --report reports/bench/gpu.json
	$(GPU_PYTHON) -m pytest -m gpu

gate: $(VENV)/.core
	$(BIN)/refmoe gate reports/
	$(BIN)/python tools/readme.py --check

baseline: $(VENV)/.core
	$(BIN)/refmoe gate --write-baseline

readme: $(VENV)/.core
	$(BIN)/python tools/readme.py

lint: $(VENV)/.lint $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Needs Chromium for the picture of a page; without, it says what to run where there is one.
pictures: $(VENV)/.core
	$(BIN)/python tools/pictures.py

bench: $(VENV)/.test $(VENV)/.cutlass
	$(BIN)/refmoe bench quantize --report reports/bench/quantize.json
	$(BIN)/refmoe bench models --report reports/bench/models.json
	$(BIN)/refmoe bench executor --report reports/bench/executor.json
	$(BIN)/refmoe cutlass --build one
	$(BIN)/refmoe bench cutlass --report reports/bench/cutlass.json
	$(BIN)/refmoe bench exponential --report reports/bench/exponential.json

clean:
	rm -rf $(VENV) out build *.egg-info
