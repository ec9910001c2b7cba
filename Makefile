# Two commands do everything on a machine with Python >= 3.11, a C++ compiler and make: `make test` and `make bench`.
# The first run sets up .venv (torch, nvcc where it is missing, the tools) and builds; later ones only build what changed.
# Neither needs a GPU: `make bench` shows sums on the CPU then, and the tests run on the CPU alone.

TORCH  ?= 2.11.0#   the torch to install in .venv and to build for: 2.11 to 2.15
GPUS   := $(wildcard /dev/nvidia[0-9]* /proc/driver/nvidia/gpus/* /dev/dxg)#  /dev/dxg: Windows' GPU, in WSL
CUDA   ?= $(or $(GPUREDUCE_CUDA),$(USE_CUDA),$(if $(GPUS)$(TORCH_CUDA_ARCH_LIST)$(filter wheels,$(MAKECMDGOALS)),1,no GPU))
TORCH_INDEX ?=#     where pip looks for torch, too; without CUDA it looks for a wheel that has none
TORCHES ?= 2.11.0 2.12.0 2.13.0 2.14.0 2.15.0#  the torches that `make wheels` builds for and `make test-wheels` tries
PYTHON ?= python3#  what .venv is made with
JOBS   ?= $(if $(GPUS),,$(shell n=$$(nproc); echo $$((n < 8 ? n : 8))))#  processes that share the tests: with a GPU one
ARGS   ?=#          more arguments for pytest (make test), bench/grid.py (make bench, make grid) or the ladder
VENV   := .venv
PY     := $(VENV)/bin/python#  `make test PY=python3` uses an environment of your own: nothing is installed

TORCH := $(strip $(TORCH))
CUDA  := $(CUDA)#  before GPUREDUCE_CUDA, which it asks for, is set
export GPUREDUCE_CUDA := $(if $(filter 0 OFF off NO no FALSE false N n,$(CUDA)),0,1)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help build test test-docs bench grid ladder course models family ranks tune sanitize lint format wheel wheels test-wheels clean FORCE
.DEFAULT_GOAL := help

help:
	@echo 'make test    set up, build, and run the tests          (ARGS="-k order -x")'
	@echo 'make test-docs  and the tests of documents, packaging, reports and the course'
	@echo 'make bench   set up, build, and show sums beside torch.sum, on the GPU or, without one, on the CPU (ARGS="--help")'
	@echo 'make grid    set up, build, measure the whole grid, and write it into README.md and docs/'
	@echo 'make ladder  set up, build, climb the ladder of classic kernels, with counters'
	@echo 'make course  emulate the ladder on the CPU, with counters: needs Python and g++, no torch, no GPU and no build'
	@echo 'make models  set up, build, measure sums inside models, and write it into README.md and docs/'
	@echo 'make family  set up, build, measure all functions but sums, and write it into README.md and docs/'
	@echo 'make ranks   set up, build, measure ranks on several GPUs, and write it into docs/distributed.md'
	@echo 'make tune    set up, build, measure plans on this GPU for ten minutes, and fit the choice among them'
	@echo 'make sanitize  set up, build with the sanitizers of g++, and run the core of the tests; compute-sanitizer on a GPU'
	@echo 'make build   set up, and build the library in place'
	@echo 'make lint    check the style of Python, C++ and CUDA'
	@echo 'make format  put it in order, as far as the tools can'
	@echo 'make wheel   put a wheel for this torch into dist/'
	@echo 'make wheels  put two wheels into dist/, each for all of TORCHES: for the CPU alone, and (not if CUDA=0) with CUDA'
	@echo 'make test-wheels  try them with each of TORCHES, in new environments without a compiler'
	@echo 'make clean   remove what was built; .venv stays'
	@echo
	@echo 'TORCH=$(TORCH) another torch (2.11.0 to 2.15.0)   PYTHON=$(strip $(PYTHON)) for a new .venv'
	@echo 'CUDA=0 the CPU alone, the default without an NVIDIA GPU; CUDA=1 the kernels for GPUs, too   JOBS=4 four processes test'
	@echo 'TORCHES="$(strip $(TORCHES))" the torches of make wheels and make test-wheels'
	@echo 'TORCH_INDEX=URL where pip also looks for torch: without CUDA it takes a wheel that has none, where it finds one'
	@echo 'VERBOSE=1 every command of the compiler'
	@echo 'PY=python3 an environment of your own: it must have torch, ninja, setuptools and pytest; nothing is installed'

# --- set-up ---------------------------------------------------------------------------------------------------------------
# A stamp a step. torch's is named after its version, and whether it may come without CUDA: another TORCH= or CUDA= installs
# again, and with it comes all else.

ifeq ($(origin PY),file)
GOT     := $(VENV)/.torch-$(TORCH)$(if $(filter 0,$(GPUREDUCE_CUDA)),-cpu)
READY   := $(GOT) $(VENV)/.toolkit-$(TORCH)-$(GPUREDUCE_CUDA)$(GPUREDUCE_TOOLKIT)
LINTERS := $(VENV)/.lint
WHEELS  := $(VENV)/.wheels
BIN     := $(VENV)/bin/
endif

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'torch_reduce needs Python 3.11 or newer: name one, as in `make test PYTHON=python3.12`.'; exit 1; }
	@echo '==> making $(VENV)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo 'This Python cannot make virtual environments: on Debian and Ubuntu, run `apt install python3-venv`.'; exit 1; }
	@$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	@$(PY) -c 'import os, sysconfig; open(sysconfig.get_path("purelib") + "/torch_reduce.pth", "w").write(os.getcwd() + "\n")'
	@touch $@

$(GOT): $(VENV)/.python pyproject.toml
	@echo '==> installing torch $(TORCH) and the tools into $(VENV): some minutes and up to 5 GB the first time'
	@rm -f $(filter-out $(VENV)/.torch-$(TORCH) $(VENV)/.torch-$(TORCH)-cpu,$(wildcard $(VENV)/.torch-*)) $(VENV)/.toolkit-*
	@$(PY) tools/install_torch.py $(TORCH) $(if $(filter 0,$(GPUREDUCE_CUDA)),--cpu) \
	  $(if $(TORCH_INDEX),--index $(TORCH_INDEX)) --group build --group test
	@touch $@

$(VENV)/.toolkit-%: $(GOT) tools/toolkit.py
	@[ $(GPUREDUCE_CUDA) = 0 ] || $(PY) tools/toolkit.py
	@touch $@

$(VENV)/.lint: $(VENV)/.python pyproject.toml
	@$(PY) -m pip install --quiet --group lint
	@touch $@

$(VENV)/.wheels: $(VENV)/.python pyproject.toml
	@$(PY) -m pip install --quiet --group wheels
	@touch $@

# --- build ----------------------------------------------------------------------------------------------------------------
# _build.json is written last, with the time at which the build began: what is edited meanwhile is newer. The settings count as
# a source; folders do, for removed files.

export SETTINGS := $(TORCH) $(GPUREDUCE_CUDA) $(PY) $(TORCH_CUDA_ARCH_LIST) $(CUDA_HOME) $(GPUREDUCE_TOOLKIT) $(CXX) $(CC)
build/settings: FORCE
	@mkdir -p build
	@echo "$$SETTINGS" | cmp -s - $@ || echo "$$SETTINGS" > $@

torch_reduce/_build.json: $(READY) build/settings setup.py $(shell find csrc tools/clang) torch_reduce/ladder/_lessons.py tools/toolkit.py
	@command -v $${CXX:-c++} > /dev/null || { echo 'No C++ compiler: on Debian and Ubuntu, run `apt install g++`.'; exit 1; }
	@echo '==> building the libraries in torch_reduce/$(if $(filter GPU,$(CUDA)), for the CPU alone: no NVIDIA GPU is here (CUDA=1 compiles for GPUs all the same))'
	@$(PY) setup.py --quiet build_ext --inplace

build: torch_reduce/_build.json

# --- use ------------------------------------------------------------------------------------------------------------------

# Processes that share the cores share them better if no thread waits for work by looking for it again and again.
PASSIVE = OMP_WAIT_POLICY=$${OMP_WAIT_POLICY:-passive}
PYTEST  = $(if $(JOBS),$(PASSIVE)) $(PY) -m pytest $(if $(JOBS),-n $(JOBS) --dist loadfile --no-loadscope-reorder)
test: build
	$(PYTEST) -m 'not docs' $(ARGS)

test-docs: build $(WHEELS)
	$(PYTEST) -m docs $(ARGS)

# The host's code with g++'s checks, in a folder of its own: the usual build stays. Python and torch are not built with them,
# so their runtimes are loaded first, libstdc++ among them, or the first exception would end the process; and what Python
# leaves behind at its end is no leak of ours.
SANITIZED := build/sanitize
RUNTIMES   = $(foreach name,asan ubsan stdc++,$(shell $(CXX) -print-file-name=lib$(name).so))
CORE_TESTS = order bits layouts rows losses segment indexed weighted variance exact clip odd_calls
sanitize: $(READY)
	@echo '==> building with the address and undefined sanitizers in $(SANITIZED)/'
	@GPUREDUCE_CUDA=0 GPUREDUCE_SANITIZE=address,undefined $(PY) -W ignore setup.py --quiet \
	  build_py --build-lib $(SANITIZED)/lib build_ext --build-lib $(SANITIZED)/lib --build-temp $(SANITIZED)/objects
	LD_PRELOAD="$(RUNTIMES)" PYTHONPATH=$(SANITIZED)/lib UBSAN_OPTIONS=print_stacktrace=1 \
	  ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:allocator_may_return_null=1 \
	  $(PY) -P -m pytest -p no:cacheprovider -k 'cpu and not instruction' $(CORE_TESTS:%=tests/test_%.py) $(ARGS)
	@if ! $(PY) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  echo '==> no GPU is visible: its kernels are left out'; \
	elif ! command -v compute-sanitizer > /dev/null; then \
	  echo '==> no compute-sanitizer, which comes with the CUDA toolkit: the kernels of the GPU are left out'; \
	else \
	  $(MAKE) build && PYTHONPATH=. compute-sanitizer --tool memcheck --error-exitcode 1 $(PY) tools/sanitize.py --part 1/8; \
	fi

bench: build
	PYTHONPATH=. $(PY) bench/grid.py --short $(ARGS)

grid: build
	PYTHONPATH=. $(PY) bench/grid.py --resume $(ARGS)
	$(PY) bench/report.py

ladder: build
	PYTHONPATH=. $(PY) -m torch_reduce.ladder run --profile --against-lesson $(ARGS)

# The folder itself is run, so that neither torch nor the library is loaded.
course:
	@$(PYTHON) torch_reduce/ladder run --emulate $(ARGS)

# DATA is one of the files that the library comes with, a GPU each.
DATA ?= csrc/core/plan/data/h200.inc
tune: build
	PYTHONPATH=. $(PY) -m torch_reduce tune --seconds 540 --alone --write $(DATA) $(ARGS)

family: build
	PYTHONPATH=. $(PY) bench/family.py --save $(ARGS)
	PYTHONPATH=. $(PY) bench/weighted.py --save
	PYTHONPATH=. $(PY) bench/segment.py --save
	PYTHONPATH=. $(PY) bench/rows.py --save
	PYTHONPATH=. $(PY) bench/index.py --save
	PYTHONPATH=. $(PY) bench/exact.py --save
	$(PY) bench/family_report.py
	$(PY) bench/rows_report.py
	$(PY) bench/index_report.py
	$(PY) bench/exact_report.py
	$(PY) bench/times_report.py
	$(PY) bench/report.py

ranks: build
	PYTHONPATH=. $(PY) bench/ranks.py --save $(ARGS)
	$(PY) bench/ranks_report.py
	$(PY) bench/times_report.py
	$(PY) bench/report.py

models: build
	PYTHONPATH=. $(PY) bench/models.py --save $(ARGS)
	PYTHONPATH=. $(PY) examples/batch_invariance.py --save
	$(PY) bench/models_report.py
	$(PY) bench/report.py

NATIVE = $(shell find csrc tools torch_reduce/ladder/emulator -name '*.h' -o -name '*.inl' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu')
lint: $(LINTERS)
	$(BIN)ruff check .
	$(BIN)codespell --skip '*/es.md,*/zh.md' README.md CONTRIBUTING.md Makefile setup.py docs/*.md docs/ladder/*.md csrc torch_reduce/*.py torch_reduce/distributed torch_reduce/tuning torch_reduce/ladder tests/*.py bench/*.py tools examples
	$(BIN)clang-format --dry-run --Werror $(NATIVE)

format: $(LINTERS)
	$(BIN)ruff check --fix .
	$(BIN)clang-format -i $(NATIVE)

wheel: build
	@rm -rf build/lib.* build/bdist.*
	$(PY) -m pip wheel --no-build-isolation --no-deps --wheel-dir dist .

wheels: $(READY) $(WHEELS)
	$(PY) tools/wheels.py build --cpu $(TORCHES)
	$(if $(filter 0,$(GPUREDUCE_CUDA)),,$(PY) tools/wheels.py build $(TORCHES))

test-wheels: $(VENV)/.python
	$(PY) tools/wheels.py try $(wildcard dist/*-abi3-manylinux*_$(shell uname -m).whl) $(TORCHES) $(ARGS)

clean:
	rm -rf build dist *.egg-info torch_reduce/*.so torch_reduce/_build.json
