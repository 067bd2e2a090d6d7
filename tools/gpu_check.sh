#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one run of a few minutes: device tests, ep_bench on both traces,
# the sanitizers, and the machine code. Prints a table last; exits with 1 if anything failed.
#
#   tools/gpu_check.sh [build folder]         default: build/cuda
#   tools/gpu_check.sh --tests PATH --bench PATH [--device PATH] [--traces FOLDER]
#                      [--only STEP,STEP..]
#
# The programs may have been built elsewhere: no compiler and no CMake is needed here.
# Steps: tests gdaki nodes bench memcheck initcheck synccheck racecheck sass
set -u -o pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/cuda
tests=
bench=
device=
traces=$root/benchmarks/traces
only=tests,gdaki,nodes,bench,memcheck,initcheck,synccheck,racecheck,sass
while [ $# -gt 0 ]; do
  case $1 in
    --tests) tests=$2; shift 2 ;;
    --bench) bench=$2; shift 2 ;;
    --device) device=$2; shift 2 ;;
    --traces) traces=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    -h | --help) sed -n '3,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) echo "gpu_check.sh: no option $1; --help lists them" >&2; exit 2 ;;
    *) build=$1; shift ;;
  esac
done
tests=${tests:-$build/bin/cuda_tests}
bench=${bench:-$build/bin/ep_bench}
device=${device:-$build/bin/device_tests}
for program in "$tests" "$bench" "$device"; do
  if [ ! -x "$program" ]; then
    echo "gpu_check.sh: $program is not there; build it, or give --tests, --bench, --device" >&2
    exit 2
  fi
done

log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
summary=()
failed=0

# step NAME LIMIT_S PATTERN COMMAND..: runs it, shows the end of its output if it failed, and adds a
# line to the table with the last output line that matches PATTERN.
step() {
  local name=$1 limit=$2 pattern=$3
  shift 3
  local started=$SECONDS verdict=ok status=0 note
  echo "[$SECONDS s] $name"
  timeout -k 10 "$limit" "$@" >"$log/out" 2>&1 || status=$?
  if [ "$status" -eq 0 ] && grep -q '^\[=*\] 0 tests' "$log/out"; then
    status=1  # a filter that matches nothing must not look like a clean run
  fi
  if [ "$status" -ne 0 ]; then
    failed=1
    verdict=FAILED
    case $status in 124 | 137) verdict="TIMEOUT $limit s" ;; esac
    echo "---- $name, status $status: $*"
    tail -n 60 "$log/out"
    echo "----"
  fi
  note=$(grep -E -- "$pattern" "$log/out" | tail -n 1 | cut -c1-90)
  summary+=("$(printf '%-44s %-14s %4d s  %s' "$name" "$verdict" $((SECONDS - started)) "$note")")
}

wanted() { case ",$only," in *",$1,"*) return 0 ;; *) return 1 ;; esac; }

# A sanitizer that is missing is a failure: it must not look like a clean run.
sanitize() {
  local name=$1 tool=$2
  shift 2
  step "$name" 150 'ERROR SUMMARY|RACECHECK SUMMARY|PASSED|internal error' \
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$@"
}

# shellcheck disable=SC2317  # called through bash -c
# Rows that a peer writes while the kernel runs must not be read through the non-coherent cache.
machine_code() {
  local sass="$2/sass" count
  cuobjdump --dump-sass "$1" >"$sass" || return 1
  count=$(grep -c -E 'LD[A-Z0-9.]*\.CONSTANT' "$sass")
  echo "$count non-coherent loads in $(grep -c 'Function :' "$sass") kernels"
  [ "$count" -eq 0 ] && grep -q 'run_calls' "$sass"
}
export -f machine_code

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true

gdaki='CudaGdaki/*:CudaGdakiFault*:CudaNegativeControl*'
if wanted tests; then
  step "cuda_tests" 240 '^\[  PASSED|FAILED TEST' "$tests" --gtest_brief=1 \
    "--gtest_filter=-$gdaki"
fi
if wanted gdaki; then
  step "conformance of gdaki" 60 '^\[  PASSED|FAILED TEST' "$tests" --gtest_brief=1 \
    "--gtest_filter=$gdaki"
fi
if wanted nodes; then
  step "two nodes on one GPU" 60 '^\[  PASSED|FAILED TEST' "$device" --gtest_brief=1 \
    '--gtest_filter=OneGpu/TwoNodes*'
  grep -E ' us, combine ' "$log/out"
fi

# bench NAME ARGUMENTS..: one line of the table, all wires unless the arguments say otherwise.
bench() {
  local name=$1
  shift
  step "ep_bench $name" 90 '^(efa-proxy|nvlink) .*(yes|NO)' \
    "$bench" --exec cuda --wire all --ranks 8 --topk 8 --experts "$experts" \
    --routing "trace:$traces/$trace" "$@"
}

# must_fail NAME PATTERN COMMAND..: the negative control; a check that finds nothing is no check.
must_fail() {
  local name=$1 pattern=$2
  shift 2
  # shellcheck disable=SC2016  # expanded by the inner shell
  step "$name" 60 "$pattern" bash -c \
    'pattern=$1; shift; "$@" && exit 9; [ $? -eq 1 ] && "$@" 2>&1 | grep -E -- "$pattern"' \
    _ "$pattern" "$@"
}

bench_lines=()
if wanted bench; then
  for model in "moe_e256_k8 256" "moe_e64_k8 64"; do
    read -r trace experts <<<"$model"
    # The wires choose their shape: nvlink direct, ib-gpu and efa-gpu per_row, efa-proxy per_peer.
    for mode in slotted counted; do
      for layout in rank_major expert_major padded in_place; do
        bench "$trace $mode $layout" --mode "$mode" --layout "$layout" \
          --tokens 128 --hidden 7168 --iterations 3
        while IFS= read -r line; do bench_lines+=("$trace $mode $layout $line"); done \
          < <(grep 'cuda events' "$log/out" | grep -v 'multiprocessors')
      done
    done
    small=(--tokens 64 --hidden 2880 --iterations 3)
    bench "$trace fp8 expert_major" "${small[@]}" --format fp8 --layout expert_major
    bench "$trace fp8-ue8m0 counted padded" "${small[@]}" --format fp8-ue8m0 --mode counted \
      --layout padded
    bench "$trace opaque fp8 in_place" "${small[@]}" --format opaque:2880:92 --layout in_place
    bench "$trace fp16, fp32 on the wire" "${small[@]}" --values fp16 --returns fp32 \
      --mode counted --layout expert_major
    bench "$trace fp32 at the caller's place" "${small[@]}" --values fp32 \
      --format opaque:11520 --mode counted --landing caller
    bench "$trace pull" "${small[@]}" --mode counted --wire nvlink --transfer pull
  done
  # Kernels that post to emulated NICs: blocks of the GPU play them, or a host thread.
  for wire in gdaki:efa gdaki:mlx5; do
    for nic in block thread; do
      step "ep_bench $wire, $nic" 90 '^gdaki.*(yes|NO)' "$bench" --exec cuda --wire "$wire" \
        --nic "$nic" --ranks 2 --tokens 8 --hidden 7168 --topk 8 --experts 256 --iterations 3 \
        --chunk 1048576 --routing "trace:$traces/moe_e256_k8"
    done
  done
  must_fail "ep_bench notices damage" 'combined token' "$bench" --exec cuda --wire nvlink \
    --ranks 2 --tokens 4 --hidden 64 --topk 2 --experts 8 --iterations 1 --tamper
fi

small_bench=("$bench" --exec cuda --wire all --ranks 4 --tokens 8 --hidden 512 --topk 4
  --experts 16 --iterations 2 --layout expert_major)
groups='Shapes/CudaGroup.Dispatch*/2ranks_*:Shapes/CudaGroup.Summed*/5ranks_*_expert_major'
workers='Shapes/CudaWorker.*/3blocks5warps'
faults='CudaFault/*.TooMany*:CudaFault/*.AnOutput*'
# Counted and slotted calls in every layout, in-kernel FP8, scales by column, push and pull.
matrix='Traces/CudaMatrix*/moe_e64_k8_2ranks_*_fp8_columns'
if wanted memcheck; then
  wire='CudaExecutor.A*:CudaLoopback/nvlink.Every*'
  sanitize "memcheck: workers, groups, faults" memcheck "$tests" --gtest_brief=1 \
    "--gtest_filter=CudaWarp.*Long*:$wire:$workers:$groups:$faults"
  sanitize "memcheck: ep_bench" memcheck "${small_bench[@]}"
  sanitize "memcheck: modes, layouts, FP8" memcheck "$tests" --gtest_brief=1 \
    "--gtest_filter=$matrix"
fi
if wanted initcheck; then
  sanitize "initcheck: modes, layouts, formats" initcheck "$tests" --gtest_brief=1 \
    '--gtest_filter=*CudaMatrix*/*moe_e64*2*'
  sanitize "initcheck: ep_bench" initcheck "${small_bench[@]}"
fi
if wanted synccheck; then
  sanitize "synccheck: workers, groups, faults" synccheck "$tests" --gtest_brief=1 \
    "--gtest_filter=CudaWarp.Sums*:$workers:$groups:$faults"
fi
if wanted racecheck; then
  counted=${matrix/ranks_/ranks_counted_}
  sanitize "racecheck: shared memory" racecheck "$tests" --gtest_brief=1 \
    "--gtest_filter=CudaGathering.Ranks*:Shapes/CudaGroup.Dispatch*/2ranks_*_expert_major:$counted"
fi
if wanted sass; then
  step "machine code" 60 'non-coherent' bash -c 'machine_code "$@"' _ "$tests" "$log"
fi

if [ ${#bench_lines[@]} -gt 0 ]; then
  echo
  printf '%s\n' "${bench_lines[@]}"
fi
echo
printf '%s\n' "${summary[@]}"
echo
if [ "$failed" -eq 0 ]; then
  echo "gpu_check: all good in $SECONDS s"
else
  echo "gpu_check: FAILED"
fi
exit "$failed"
