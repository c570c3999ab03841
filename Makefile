# make demo    installs what is missing, builds, trains a small GPT, harvests its bubbles, prints a table (build/demo/report.json)
# make test    installs what is missing, builds, runs every test
# make test-docker   installs Docker, builds the image, runs training on the host with the worker and its side tasks in containers
# make bench   installs what is missing, builds, measures latencies (build/bench/latency.json)
# make check   formatting, clang-tidy, folder rules
# make dist    packs everything into build/dist/freeride: runs on any host with glibc 2.36 or later, without installing anything
# make asan / tsan   tests under sanitizers

JOBS ?= $(shell nproc)
PYTHON ?= /usr/bin/python3
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CTEST_OUTPUT_ON_FAILURE := 1

.PHONY: dist demo test test-docker bench check asan tsan build build-bench format install clean

demo:
	@scripts/install-deps.sh demo
	@$(MAKE) --no-print-directory build
	$(PYTHON) demo/run.py --build build/dev --out build/demo $(DEMO_ARGS)

test:
	@scripts/install-deps.sh test
	@$(MAKE) --no-print-directory build
	ctest --test-dir build/dev -j$(JOBS) --output-on-failure $(CTEST_ARGS)

test-docker:
	@scripts/install-deps.sh docker
	@$(MAKE) --no-print-directory build
	$(PYTHON) tests/containers/run.py --build build/dev --out build/docker $(DOCKER_ARGS)

bench:
	@scripts/install-deps.sh bench
	cmake --preset bench
	cmake --build build/bench-build -j$(JOBS)
	$(PYTHON) bench/run.py --build build/bench-build --out build/bench $(BENCH_ARGS)

check:
	@scripts/install-deps.sh check
	scripts/check-format.sh
	scripts/check-folders.py
	cmake --preset dev
	scripts/check-tidy.sh build/dev

# Everything but what Python loads into itself and what builds out of tree.
asan:
	@scripts/install-deps.sh test
	cmake --preset asan
	cmake --build build/asan -j$(JOBS)
	ctest --test-dir build/asan -LE framework -E '^(plugin_template_test|demo_test)$$' -j$(JOBS) --output-on-failure

# What has threads of its own; not the worker's processes, where a slow exit under the sanitizer is an overrun. libzmq's races are
# false alarms: cmake/tsan.supp.
TSAN_TESTS := pages_test hook_unit_test hook_process_test bus_sockets_test bus_broker_test bus_hostile_test worker_test \
              supervisor_process_test manager_test manager_process_test
empty :=
space := $(empty) $(empty)
tsan: export TSAN_OPTIONS := suppressions=$(CURDIR)/cmake/tsan.supp
tsan:
	@scripts/install-deps.sh test
	cmake --preset tsan
	cmake --build build/tsan -j$(JOBS) --target $(TSAN_TESTS)
	ctest --test-dir build/tsan -R '^($(subst $(space),|,$(strip $(TSAN_TESTS))))$$' -j$(JOBS) --output-on-failure

build:
	cmake --preset dev
	cmake --build build/dev -j$(JOBS)

format:
	git ls-files -z '*.c' '*.h' '*.cpp' '*.hpp' | xargs -0 clang-format -i

dist:
	@scripts/install-deps.sh dist
	@$(MAKE) --no-print-directory build
	scripts/make-dist.sh build/dev build/dist/freeride test

install: build
	cmake --install build/dev

clean:
	rm -rf build
