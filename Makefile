# The commands that people type. Everything else is CMake: see CMakePresets.json.
.PHONY: help demo test test-rdma gpu-check peer-check format check tidy clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/make \1|\2/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r name text; do printf '%-16s %s\n' "$$name" "$$text"; done

demo: ## what each wire would make of one dispatch and combine, on this machine's CPU
	@tools/install_deps.sh demo
	@[ -f build/host/build.ninja ] || cmake --preset host -DEPTRANSPORT_BUILD_TESTS=OFF \
	  -DEPTRANSPORT_BUILD_EXAMPLES=OFF
	@cmake --build build/host --target ep_bench
	build/host/bin/ep_bench --wire all --ranks 8 --routing trace:benchmarks/traces/moe_e256_k8 \
	  --tokens 16 --hidden 7168 --topk 8 --experts 256 --format bf16 --iterations 20 --seed 1

test: ## all that a change must pass: checks, g++, clang++, sanitizers, nvcc
	@tools/install_deps.sh test
	@tools/run_tests.sh

gpu-check: ## what needs a GPU: the device tests and the device benchmark
	@cmake --preset cuda
	@cmake --build --preset cuda
	@tools/gpu_check.sh

test-rdma: ## tests over verbs: soft-RoCE in a virtual machine, where one can be made
	@tools/test_rdma.sh

check: ## format, includes, sizes, names, documents: under ten seconds
	@python3 tools/check.py

peer-check: ## what needs two GPUs of one host: device tests, killed processes, ep_bench
	@cmake --preset cuda
	@cmake --build --preset cuda
	@tools/peer_check.sh

format: ## clang-format and the README's code blocks, in place
	@python3 tools/check.py --fix

tidy: ## clang-tidy over the host build's sources
	@cmake --preset asan
	@git ls-files 'tests/*.cpp' 'examples/*.cpp' 'benchmarks/*.cpp' | grep -v compile_fail | \
	  xargs clang-tidy -p build/asan --quiet

clean: ## removes build/
	@rm -rf build
