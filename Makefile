# Every target sets up what it needs, without root: `make parity` on a fresh machine needs python3, g++ and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported; of torch and what comes with it most never are.
INSTALL := $(BIN)/pip --disable-pip-version-check --quiet install --no-compile
# Named in the same call as the packages that need it: left to them, pip takes the newest with all of CUDA.
TORCH := torch==2.13.0
REPORT ?= out/parity.json
# Processes that cases and mutants run in.
JOBS ?= $(shell nproc)
# `make mutants MUTANTS_REPORT=reports/ptx.json` renews the committed one.
MUTANTS_REPORT ?= out/mutants.json
# `make mutants SHARE=2/4` plants every fourth fault from the second on.
SHARE ?= 1/1
# `make gate GATE=--quick` does not compute the figures of drift and convert anew, which takes minutes.
GATE ?=
# Which of the million mutants `make mutate` tries, and where it says what became of them.
MUTATE ?= --sample 200
MUTATE_REPORT ?= out/mutation.json
# `make exhaustive EXHAUSTIVE_REPORT=reports/exhaustive.json EXHAUSTIVE_ARGUMENTS='--dtype bf16'` for one type of input.
EXHAUSTIVE_REPORT ?= out/exhaustive.json
EXHAUSTIVE_ARGUMENTS ?=
# On a GPU machine the Python that has torch and cuda-python; the default installs them.
GPU_PYTHON ?= $(BIN)/python
# The commit whose executor, and whose routing of many tokens, are the measure of these.
BEFORE := 2db4e6e
# `make cutlass CUTLASS_BUILDS=all` builds and proves all eight builds of CUTLASS's kernel, not only the one of servers.
CUTLASS_BUILDS ?= one
# `make cutlass CUTLASS_BUILDS=all CUTLASS_REPORT=reports/cutlass.json` renews the committed one.
CUTLASS_REPORT ?= out/cutlass.json
CUTE_REPORT ?= out/cute.json
# `make samples SAMPLES_REPORT=reports/samples.json` renews the committed one.
SAMPLES_REPORT ?= out/samples.json
# `make schedules SCHEDULES_REPORT=reports/schedules.json` renews the committed one.
SCHEDULES_REPORT ?= out/schedules.json

# The release of llama.cpp's sources whose kernels `make llama-cpp` runs, and the hash of the package that has them.
LLAMA_CPP := llama-cpp-python==0.3.36
LLAMA_CPP_SHA256 := 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

# Those of `refmoe bench` that need no GPU.
BENCHES := quantize models executor first_launch races memory layer deepseek cutlass exponential tiles parity faults

PARITY_one := --arch sm_121a
PARITY_all := --level full

# A machine may forbid compiled modules; every command here would then compile all that it imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup explained parity cutlass cute samples llama-cpp full mutants executor-faults drift convert notebooks test slow test-gpu workflow lint gate baseline readme pictures wheel sizes bench benchmarks against clean mutate invariant litmus schedules exhaustive site

help:
	@echo "Prove"
	@echo "  make parity     prove the production kernels on this machine, without a GPU, into $(REPORT)"
	@echo "  make mutants    the same, then plant faults in the kernels and show which case catches each"
	@echo "  make mutate     change the kernels in small ways everywhere (MUTATE=\"--sample 200\"), and show what no case sees"
	@echo "  make exhaustive  MXFP8 and MXFP4 over every pair (amax, element), and what a byte depends on (10 minutes a type)"
	@echo "  make full       parity with every case, on every architecture"
	@echo "  make cutlass    build CUTLASS's grouped GEMM, prove it equal to ours, plant its faults (minutes, 6 GB);"
	@echo "                  CUTLASS_BUILDS=all for all eight builds"
	@echo "  make cute       install CuTe DSL (250 MB), prove the kernels that are written in it, plant their faults"
	@echo "  make llama-cpp  get llama.cpp's sources (77 MB), run its CUDA kernels on the executor, hold Q8_1 and DP4A against them"
	@echo "  make samples    block FP8 at DeepSeek-V3's own sizes: 512 x 512 outputs of each class of experts, on the executor"
	@echo "  make test-gpu   every case, the GPU tests and benchmarks on the GPU of this machine, into reports/"
	@echo "Check"
	@echo "  make test       run the tests"
	@echo "  make slow       run the rest of the long lists of which \`make test\` runs a part (minutes)"
	@echo "  make executor-faults  plant faults in the PTX executor: the tests that each one names must find it (minutes)"
	@echo "  make explained  the executor's tests once more, with every race that they find explained (minutes)"
	@echo "  make litmus     10,000 litmus programs under 16 schedules and on many ways (two hours of two cores; goes on after Ctrl-C)"
	@echo "  make schedules  the default cases, CUTLASS's and CuTe DSL's among them, each launch under 16 schedules (half an hour)"
	@echo "  make lint       ruff, mypy, and the floors that pyproject.toml lists"
	@echo "  make notebooks  execute the notebooks into out/notebooks, with their pictures"
	@echo "  make gate       hold the committed reports against the sources, README's figures against the reports, and lists"
	@echo "  make workflow   run every command of the GitHub workflow on clean clones of HEAD (half an hour)"
	@echo "Renew what is committed"
	@echo "  make baseline   reports/baseline.json: the cases that must go on passing"
	@echo "  make readme     the figures of README.md, from reports/, and the lists of families in docs/"
	@echo "  make pictures   the pictures of docs/"
	@echo "  make drift      reports/drift.json and its picture: the default paths side by side over 64 decode steps"
	@echo "  make invariant  reports/invariant.json: that a token's bytes do not depend on its batch, or the pair that differs"
	@echo "  make convert    reports/convert.json and its picture: what converting block FP8 to MXFP8 loses"
	@echo "  make bench      reports/bench: each benchmark with its contenders in one run"
	@echo "  make against    reports/bench/against.json: the executor beside that of commit $(BEFORE), in one run"
	@echo "  make benchmarks docs/BENCHMARK_RESULTS.md and its pictures, from reports/bench"
	@echo "The rest"
	@echo "  make setup      install at once all that the other targets install when they need it"
	@echo "  make wheel      dist/refmoe-*.whl with the PTX of every kernel, for machines without nvcc (minutes)"
	@echo "  make sizes      docs/install.json: what \`refmoe probe\` installs, measured in fresh environments (140 MB to fetch)"
	@echo "  make site       docs/ as a site, into out/site"
	@echo "  make clean      remove what is installed and built here"

# --- environment ----------------------------------------------------------------------------------------------------

$(VENV)/.core: pyproject.toml
	@# pip and not python: a Python without ensurepip leaves the one and not the other.
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[pictures]'
	@# nvcc of CUDA_HOME or PATH serves; only a machine without one downloads the compiler (270 MB).
	$(BIN)/python -c "from refmoe.cuda import toolchain; toolchain.find_toolchain()" 2>/dev/null \
		|| $(INSTALL) --editable '.[nvcc]'
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(INSTALL) $(TORCH) --editable '.[oracles,test]'
	touch $@

$(VENV)/.cutlass: $(VENV)/.core
	$(INSTALL) --editable '.[cutlass]'
	touch $@

# 246 MB, of which 92 are fetched; it needs no GPU.
$(VENV)/.cute: $(VENV)/.core
	$(INSTALL) --editable '.[cute]'
	touch $@

$(VENV)/.prover: $(VENV)/.core
	$(INSTALL) --editable '.[prover]'
	touch $@

$(VENV)/.lint: $(VENV)/.core
	$(INSTALL) --editable '.[lint]'
	touch $@

$(VENV)/.notebooks: $(VENV)/.core
	$(INSTALL) --editable '.[notebooks]'
	touch $@

$(VENV)/.site: $(VENV)/.core
	$(INSTALL) --editable '.[site]'
	touch $@

setup: $(VENV)/.setup

# One call of pip for all of the above.
$(VENV)/.setup: $(VENV)/.core
	$(INSTALL) $(TORCH) --editable '.[oracles,test,cutlass,cute,lint,notebooks]'
	touch $(foreach extra,test prover cutlass cute lint notebooks setup,$(VENV)/.$(extra))

$(VENV)/bin/python: $(VENV)/.core

# --- proofs ---------------------------------------------------------------------------------------------------------

parity: $(VENV)/.core
	$(BIN)/refmoe parity --jobs $(JOBS) --report $(REPORT)

cutlass: $(VENV)/.cutlass
	@test -n "$(PARITY_$(CUTLASS_BUILDS))" || { echo "CUTLASS_BUILDS: found $(CUTLASS_BUILDS); needed one or all"; exit 2; }
	$(BIN)/refmoe cutlass --build $(CUTLASS_BUILDS)
	$(BIN)/refmoe parity --jobs $(JOBS) --suite cutlass_gemm $(PARITY_$(CUTLASS_BUILDS)) --mutants --report $(CUTLASS_REPORT)

cute: $(VENV)/.cute
	$(BIN)/refmoe parity --jobs $(JOBS) --suite cute_deepseek_gemm --suite cute_deepseek_activation --mutants \
		--report $(CUTE_REPORT)

# The sources stay in out/. Only CUDA kernels are compiled of them, and nothing is installed.
llama-cpp: $(VENV)/.test out/llama_cpp/ggml
	REFMOE_LLAMA_CPP=$(CURDIR)/out/llama_cpp/ggml $(BIN)/python -m pytest tests/reference/oracles/test_llama_cpp.py

out/llama_cpp/ggml: | $(VENV)/.core
	rm -rf out/llama_cpp && mkdir -p out/llama_cpp
	echo "$(LLAMA_CPP) --hash=sha256:$(LLAMA_CPP_SHA256)" > out/llama_cpp/requirements.txt
	@# pip asks the package for its name and version, and therefore fetches what builds it.
	$(BIN)/pip --disable-pip-version-check --quiet download --no-deps --no-binary llama-cpp-python --require-hashes \
		--requirement out/llama_cpp/requirements.txt --dest out/llama_cpp
	tar -x -z -f out/llama_cpp/*.tar.gz -C out/llama_cpp --strip-components=3 \
		$(subst ==,-,$(subst -,_,$(LLAMA_CPP)))/vendor/llama.cpp/ggml
	touch $@

# Models' true sizes, in part: half an hour of one core, which `make parity` does without.
samples: $(VENV)/.cute
	$(BIN)/refmoe parity --jobs $(JOBS) --level samples --report $(SAMPLES_REPORT)

full: $(VENV)/.cutlass $(VENV)/.cute $(VENV)/.test
	$(BIN)/refmoe parity --jobs $(JOBS) --level full --report out/full.json
	@# What is said of the tiles that CUTLASS refuses, confirmed by its own static assertions.
	REFMOE_CUTLASS_BUILD=1 $(BIN)/python -m pytest tests/museum/cutlass/test_host_builds.py

exhaustive: $(VENV)/.core
	@# What is done is kept next to the report: after Ctrl-C the same command goes on.
	$(BIN)/refmoe parity --level exhaustive --jobs $(JOBS) $(EXHAUSTIVE_ARGUMENTS) --report $(EXHAUSTIVE_REPORT)

mutants: $(VENV)/.core
	$(BIN)/refmoe parity --jobs $(JOBS) --mutants --share $(SHARE) --report $(MUTANTS_REPORT)

mutate: $(VENV)/.prover
	$(BIN)/refmoe mutate $(MUTATE) --jobs $(JOBS) --report $(MUTATE_REPORT)

explained: $(VENV)/.test
	REFMOE_TEST_EXPLAINED=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/ptx

executor-faults: $(VENV)/.test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow tests/ptx/test_faults.py

schedules: $(VENV)/.cutlass $(VENV)/.cute
	$(BIN)/refmoe cutlass --build one
	$(BIN)/refmoe parity --jobs $(JOBS) --schedules 16 --report $(SCHEDULES_REPORT)

litmus: $(VENV)/.core
	$(BIN)/refmoe litmus --programs 10000 --schedules 16 --walks 400 --jobs $(JOBS) --report out/litmus.json

drift: $(VENV)/.core
	$(BIN)/refmoe drift --report reports/drift.json --plot docs/drift.png

invariant: $(VENV)/.core
	$(BIN)/refmoe invariant --report reports/invariant.json

convert: $(VENV)/.core
	$(BIN)/refmoe policy convert --report reports/convert.json --picture docs/convert.png

# Copies are executed, so that the ones in notebooks/ stay without outputs.
notebooks: $(VENV)/.notebooks
	rm -rf out/notebooks && mkdir -p out && cp -r notebooks out/notebooks
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=300 --overwrite --durations=0 out/notebooks

test: $(VENV)/.test
	@# Each process takes neighbours and then from the other's end: what a module's tests share is made once.
	@# Only what is named is loaded: of a plugin that pytest finds by itself, as refmoe's, it rewrites the asserts of
	@# the whole package, in each process; and the plugin of the notebooks takes two seconds to import.
	$(BIN)/python -m pytest --disable-plugin-autoload -p xdist -p _hypothesis_pytestplugin -p refmoe.pytest_plugin \
		-n auto --dist worksteal --junitxml=out/tests.xml

# What `make executor-faults` and `make workflow` run is left to them.
slow: $(VENV)/.test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow --ignore tests/ptx/test_faults.py --ignore tests/test_workflow.py

test-gpu: $(GPU_PYTHON)
	$(GPU_PYTHON) -m refmoe parity --device cuda --level full --jobs 8 --report reports/gpu.json
	$(GPU_PYTHON) -m refmoe conformance --device cuda --report reports/bench/conformance.json
	$(GPU_PYTHON) -m refmoe stress --device cuda --report reports/stress.json
	$(GPU_PYTHON) -m refmoe litmus --device cuda --report reports/litmus.json
	$(GPU_PYTHON) -m refmoe parity --level exhaustive --device cuda --jobs 8 --report reports/exhaustive.json
	@# The routing that this one's time is compared with.
	mkdir -p out/$(BEFORE)
	git archive $(BEFORE) refmoe/cuda/csrc | tar -x -C out/$(BEFORE)
	$(GPU_PYTHON) -m refmoe bench gpu --against out/$(BEFORE) --report reports/bench/gpu.json
	$(GPU_PYTHON) -m refmoe bench counters --report reports/bench/counters.json
	$(GPU_PYTHON) -m refmoe bench sweep --report reports/bench/sweep.json
	$(GPU_PYTHON) -m refmoe bench deepseek_gemm --report reports/bench/deepseek_gemm.json
	$(GPU_PYTHON) -m refmoe bench deepseek_routing --report reports/bench/deepseek_routing.json
	$(GPU_PYTHON) -m pytest -m gpu

gate: $(VENV)/.core
	$(BIN)/refmoe gate reports/ $(GATE)
	$(BIN)/python tools/readme.py --check
	$(BIN)/python tools/families.py --check
	$(BIN)/python tools/benchmarks.py --check

baseline: $(VENV)/.core
	$(BIN)/refmoe gate --write-baseline

readme: $(VENV)/.core
	$(BIN)/python tools/readme.py
	$(BIN)/python tools/families.py

lint: $(VENV)/.lint $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --cache-dir out/import-linter
	$(BIN)/mypy

# After `make bench` or `make test-gpu`: the page and its pictures, from reports/bench alone.
benchmarks: $(VENV)/.core
	$(BIN)/python tools/benchmarks.py

# A page that is not in the navigation of mkdocs.yml, or a heading that a link names in vain, fails.
site: $(VENV)/.site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The commits that a clean clone has, so commit first.
workflow: $(VENV)/.test
	$(BIN)/python -m pytest -n 0 -m slow tests/test_workflow.py

# Nothing of it is committed. A wheel that pip builds by itself has no PTX: that takes nvcc.
wheel: $(VENV)/.core
	$(BIN)/python tools/wheel.py --output dist

sizes: $(VENV)/.core
	$(BIN)/python tools/install_sizes.py
	$(BIN)/python tools/readme.py

# docs/report.png is a page as Chromium shows it; without Chromium it says what to run where there is one.
pictures: $(VENV)/.core
	$(BIN)/python tools/pictures.py

# All of them run; it fails if one misses a target that it is held to.
bench: $(VENV)/.test $(VENV)/.cutlass
	$(BIN)/refmoe cutlass --build one
	failed=0; for name in $(BENCHES); do \
		$(BIN)/refmoe bench $$name --report reports/bench/$$name.json || failed=1; \
	done; exit $$failed

# Its exit status says whether the targets are reached.
against: $(VENV)/.cutlass
	mkdir -p out/$(BEFORE)
	git archive $(BEFORE) | tar -x -C out/$(BEFORE)
	$(BIN)/refmoe cutlass --build one
	$(BIN)/refmoe bench executor --against out/$(BEFORE) --report reports/bench/against.json

clean:
	rm -rf $(VENV) out build dist *.egg-info
