# make demo    installs what is missing, builds, trains a small GPT, harvests its bubbles, prints a table (build/demo/report.json)
#              SIDE_TASKS=all: with every side task that is built; SIDE_TASKS=sgd,image: with these
# make test    installs what is missing, builds, runs every test
# make chaos   SECONDS (60) of random blows to every process, disk, clock and link beside a training, then what is left of it; SEED repeats a plan
# make test-docker   installs Docker, builds the image, runs training on the host with the worker and its side tasks in containers; test-kubernetes
# make test-hosts   two hosts as namespaces, a training over both: links are cut, nodes and managers killed, keys revoked (needs root)
# make test-kubernetes   the manifests for Kubernetes alone: offline against schemas and programs, then their pods under a Docker engine (needs root)
# make test-slurm   Slurm's daemons on two hosts as namespaces: srun --freeride, Prolog, Epilog, a node that is not empty (needs root)
# make test-installed   installs the Debian package on a machine that systemd boots for it: starts, upgrades, removes (needs root)
# make test-systems   the wheel on Debian 12 and 13, and on Debian 11 where pip refuses it: made by debootstrap in build/systems (needs root)
# make test-frameworks   real torch.distributed.pipelining and DeepSpeed from PyPI, in FRAMEWORKS_VENV (build/frameworks-venv), with the hook
#                        and a part of it on the other versions of torch in FRAMEWORKS_TORCH (2.5 2.4 2.15)
# make test-launchers   the hook under torchrun, its restarts, deepspeed, mpirun, and in scripts that start their ranks: some minutes
# make test-newest   all of it on the newest torch that PyPI has: once a week
# make test-peers   the frameworks' own tests with the hook in every process and without it, on CPUs: which pass must be equal. Their sources
#                   are cloned, or are in PEERS_SOURCES, a folder of checkouts such as pytorch-2.8.0. The versions of torch: PEERS_TORCH
# make bench   installs what is missing, builds, measures latencies (build/bench/latency.json)
# make bench-tables   the paper's tables at toy size, on CPUs: shows that every part of bench/tables works (build/tables/tables.json)
# make screenshots   pictures of the page beside a training (docs/images/web-*.png)
# make check   formatting, clang-tidy, ruff, folder rules, documents
# make docs    the documentation as a site (build/docs/index.html); its tools come from PyPI once, then no network is needed
# make dist    packs everything into build/dist/freeride: runs on any host with glibc 2.34 or later, without installing anything
# make deb     Debian packages of a release build (build/package/)
# make wheel   everything as one wheel for pip (build/wheel/)
# make fuzz    builds the fuzz targets with clang and runs each for SECONDS (60) from its kept inputs on
# make asan / tsan   tests under sanitizers

JOBS ?= $(shell nproc)
SIDE_TASKS ?= pagerank,image
comma := ,
DEMO_PLUGINS = $(if $(filter all,$(SIDE_TASKS)),shipped_plugins,$(subst $(comma), ,$(SIDE_TASKS)))
PYTHON ?= /usr/bin/python3
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
# What is not in the cache goes through the preprocessor once, not twice.
export CCACHE_DEPEND := 1
export CTEST_OUTPUT_ON_FAILURE := 1
# .ci/run has one that tries again and counts.
CTEST ?= ctest
# Tests mostly wait, for processes to end and orders to expire.
TEST_JOBS ?= $(shell echo $$(($(JOBS) + 1)))

.PHONY: docs site screenshots fuzz deb wheel dist demo test chaos test-frameworks test-newest test-peers test-docker test-kubernetes test-hosts test-slurm test-installed test-systems bench bench-tables check asan tsan build build-asan build-tsan build-fuzz format install clean

demo:
	@scripts/install-deps.sh build $(if $(filter-out pagerank image sgd,$(subst $(comma), ,$(SIDE_TASKS))),plugins)
	@demo/try-sandbox.sh
	@mkdir -p build; scripts/install-deps.sh demo > build/packages.log 2>&1 & packages=$$!; \
	  $(MAKE) --no-print-directory build TARGETS="freeride-manager freeride-worker freeride-runner freeride-ctl freeride-web freeride-recorder freeride_hook $(DEMO_PLUGINS)"; \
	  built=$$?; echo "waiting for what the training needs: build/packages.log"; \
	  wait $$packages || { cat build/packages.log; exit 1; }; exit $$built
	$(PYTHON) demo/run.py --build build/dev --out build/demo --side-tasks $(SIDE_TASKS) $(DEMO_ARGS)

test:
	@scripts/install-deps.sh test
	@$(MAKE) --no-print-directory build
	$(CTEST) --test-dir build/dev -j$(TEST_JOBS) --output-on-failure $(CTEST_ARGS)

SECONDS ?= 60
chaos:
	@scripts/install-deps.sh test
	@$(MAKE) --no-print-directory build TARGETS="freeride-manager freeride-worker freeride-runner freeride-recorder freeride-ctl freeride_hook test_plugins chaos_wall_clock"
	$(PYTHON) tests/chaos/run.py --build build/dev --seconds $(SECONDS) --logs build/chaos/logs --out build/chaos/chaos.json $(if $(SEED),--seed $(SEED)) $(CHAOS_ARGS)

empty :=
space := $(empty) $(empty)
FRAMEWORKS_VENV ?= build/frameworks-venv
FRAMEWORKS_TORCH ?= 2.5 2.4 2.15
# $(1): which torch besides the one that the frameworks are pinned to; $(2): which tests.
define frameworks
	@scripts/install-deps.sh frameworks
	scripts/frameworks-venv.sh $(FRAMEWORKS_VENV) $(1)
	@$(MAKE) --no-print-directory build TARGETS="freeride_hook freeride-manager freeride-worker freeride-runner freeride-ctl"
	flock build/dev/configured cmake --preset dev -DFREERIDE_FRAMEWORKS_VENV=$(abspath $(FRAMEWORKS_VENV)) "-DFREERIDE_FRAMEWORKS_TORCH=$(subst $(space),;,$(strip $(1)))"
	$(CTEST) --test-dir build/dev -R '$(2)' --output-on-failure $(CTEST_ARGS)
endef

test-frameworks:
	$(call frameworks,$(FRAMEWORKS_TORCH),^frameworks_)

test-newest:
	$(call frameworks,newest,^frameworks_newest_)

test-launchers:
	$(call frameworks,,^launchers$$)

# 2.4 comes after 2.5, whose CUDA libraries it uses.
PEERS_TORCH ?= 2.5 2.4 2.8 2.15 newest
test-peers:
	@scripts/install-deps.sh frameworks
	scripts/frameworks-venv.sh $(FRAMEWORKS_VENV) $(PEERS_TORCH)
	@$(MAKE) --no-print-directory build TARGETS=freeride_hook
	$(FRAMEWORKS_VENV)/bin/pip --quiet install --no-deps --upgrade --target build/peers/tools -r hooks/tests/peers/requirements.txt
	$(PYTHON) hooks/tests/peers/run.py --venv $(FRAMEWORKS_VENV) --torch $(PEERS_TORCH) --out build/peers \
	  $(if $(PEERS_SOURCES),--sources $(PEERS_SOURCES)) $(PEERS_ARGS)

# The manifests for Kubernetes, offline: schemas, each other, the programs.
define manifests
	PYTHONPATH=tests:tests/kubernetes FREERIDE_BUILD_DIR=$(CURDIR)/build/dev PYTHONDONTWRITEBYTECODE=1 \
	  $(PYTHON) -m pytest -q -p no:cacheprovider tests/kubernetes/test_manifests.py
endef

test-docker:
	@scripts/install-deps.sh docker kubernetes
	@$(MAKE) --no-print-directory build
	$(manifests)
	$(PYTHON) tests/containers/run.py --build build/dev --out build/docker $(DOCKER_ARGS)

test-kubernetes:
	@scripts/install-deps.sh kubernetes
	@$(MAKE) --no-print-directory build
	$(manifests)
	$(PYTHON) tests/kubernetes/run.py --build build/dev --out build/kubernetes

test-hosts:
	@scripts/install-deps.sh hosts
	@$(MAKE) --no-print-directory build TARGETS="freeride-manager freeride-node freeride-worker freeride-runner freeride-ctl freeride_hook pagerank test_plugins"
	PYTHONPATH=tests FREERIDE_BUILD_DIR=$(CURDIR)/build/dev FREERIDE_SOURCE_DIR=$(CURDIR) PYTHONDONTWRITEBYTECODE=1 \
	  $(PYTHON) -m pytest -q -p no:cacheprovider tests/hosts $(HOSTS_ARGS)

test-slurm:
	@scripts/install-deps.sh hosts slurm
	@$(MAKE) --no-print-directory build TARGETS="freeride-manager freeride-node freeride-worker freeride-runner freeride-ctl freeride_hook freeride_spank test_plugins"
	PYTHONPATH=tests FREERIDE_BUILD_DIR=$(CURDIR)/build/dev FREERIDE_SOURCE_DIR=$(CURDIR) PYTHONDONTWRITEBYTECODE=1 \
	  $(PYTHON) -m pytest -q -p no:cacheprovider tests/slurm $(SLURM_ARGS)

test-installed:
	@scripts/install-deps.sh installed
	@$(MAKE) --no-print-directory build
	PYTHONPATH=tests FREERIDE_BUILD_DIR=$(CURDIR)/build/dev FREERIDE_SOURCE_DIR=$(CURDIR) PYTHONDONTWRITEBYTECODE=1 \
	  $(PYTHON) -m pytest -q -x -p no:cacheprovider tests/package/test_installed.py

test-systems: wheel
	@scripts/install-deps.sh systems
	$(PYTHON) tests/package/systems.py --wheel build/wheel/freeride_bubbles-*.whl --cache build/systems --out build/systems/systems.json $(SYSTEMS_ARGS)

bench:
	@scripts/install-deps.sh bench
	cmake --preset bench
	cmake --build build/bench-build -j$(JOBS)
	$(PYTHON) bench/run.py --build build/bench-build --out build/bench $(BENCH_ARGS)

screenshots:
	@scripts/install-deps.sh test
	@$(MAKE) --no-print-directory build TARGETS="freeride-manager freeride-worker freeride-runner freeride-ctl freeride-web freeride_hook pagerank"
	$(PYTHON) tests/web/screenshots.py --build build/dev

bench-tables:
	@scripts/install-deps.sh demo figures frameworks
	scripts/frameworks-venv.sh $(FRAMEWORKS_VENV)
	@$(MAKE) --no-print-directory build TARGETS="freeride-manager freeride-worker freeride-runner freeride-ctl freeride_hook bench-side-task pagerank image"
	$(PYTHON) bench/tables/run.py --scale toy --build build/dev --python $(FRAMEWORKS_VENV)/bin/python --out build/tables/tables.json
	$(PYTHON) bench/tables/page.py build/tables/tables.json

check:
	@scripts/install-deps.sh test check
	scripts/check-format.sh
	scripts/check-folders.py
	scripts/ruff.sh
	@$(MAKE) --no-print-directory build
	scripts/check-docs.py --build build/dev
	@$(MAKE) --no-print-directory site
	scripts/check-tidy.py build/dev

PROGRAMS := freeride-manager freeride-worker freeride-runner freeride-ctl freeride-node freeride-recorder freeride-web

docs:
	@scripts/install-deps.sh test
	@$(MAKE) --no-print-directory build TARGETS="$(PROGRAMS)"
	@$(MAKE) --no-print-directory site

# Of programs that are built.
site:
	NO_MKDOCS_2_WARNING=1 FREERIDE_DOCS_BIN=$(CURDIR)/build/dev/bin "$$(scripts/docs-venv.sh)/bin/mkdocs" build --strict
	@echo "now: xdg-open $(CURDIR)/build/docs/index.html"

# All that parses, decides or holds memory. The process tests have been clean too, but would take CI as long again.
ASAN_TESTS := base_test policy_test pages_test recorder_test hook_unit_test hook_process_test bus_codec_test bus_fuzz_test bus_hostile_test \
              bus_sockets_test bus_broker_test bus_wire_test plugin_sdk_test pagerank_test sgd_test image_test plugin_common_test runner_unit_test \
              worker_test manager_test ctl_test web_test supervisor_process_test
# What has threads of its own. libzmq's races are false alarms: cmake/tsan.supp.
TSAN_TESTS := pages_test hook_unit_test hook_process_test bus_sockets_test bus_broker_test bus_hostile_test manager_test

# No second try: one failure in many runs is what sanitizers are for.
sanitized = ctest --test-dir build/$(1) -R '^($(subst $(space),|,$(strip $(2))))$$' -j$(JOBS) --timeout 600 --output-on-failure $(CTEST_ARGS)

asan: build-asan
	$(call sanitized,asan,$(ASAN_TESTS))

tsan: export TSAN_OPTIONS := suppressions=$(CURDIR)/cmake/tsan.supp
tsan: build-tsan
	$(call sanitized,tsan,$(TSAN_TESTS))

fuzz: build-fuzz
	$(PYTHON) tests/fuzz/run.py --seconds $(SECONDS)

build-asan build-tsan:
	@scripts/install-deps.sh test fuzz
	cmake --preset $(@:build-%=%)
	cmake --build build/$(@:build-%=%) -j$(JOBS) --target $(if $(filter %-asan,$@),$(ASAN_TESTS),$(TSAN_TESTS))

build-fuzz:
	@scripts/install-deps.sh fuzz
	cmake --preset asan
	cmake --build build/asan -j$(JOBS) --target fuzz_targets

# Again when packages have changed: what CMake did not find may be there now. A folder that is new is compiled for one whole
# build; who edits configures it first (cmake --preset dev), and each file is compiled alone.
build/dev/configured: CMakePresets.json $(wildcard /var/lib/dpkg/status)
	cmake --preset dev $(if $(wildcard build/dev/CMakeCache.txt),,-DFREERIDE_UNITY=ON)
	@touch $@

# One at a time: who tests machines and who tests frameworks builds, too.
build: build/dev/configured
	flock $< cmake --build build/dev -j$(JOBS) $(if $(TARGETS),--target $(TARGETS))

format:
	git ls-files -z '*.c' '*.h' '*.cpp' '*.hpp' | xargs -0 clang-format -i
	scripts/ruff.sh fix

dist:
	@scripts/install-deps.sh dist
	@$(MAKE) --no-print-directory build
	scripts/make-dist.sh build/dev build/dist/freeride test

deb:
	@scripts/install-deps.sh build
	cmake --preset package
	cmake --build build/package -j$(JOBS)
	cd build/package && cpack -G DEB
	@echo "now: apt install $$(ls $(CURDIR)/build/package/*.deb)"

wheel:
	@scripts/install-deps.sh wheel
	cmake --preset package
	cmake --build build/package -j$(JOBS)
	@echo "now: pip install $$(scripts/make-wheel.sh build/package build/wheel)"

install: build
	cmake --install build/dev

clean:
	rm -rf build
