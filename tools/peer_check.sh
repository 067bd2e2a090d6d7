#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What needs two GPUs of one host: device tests on one and two GPUs, killed processes, sanitizers,
# machine code, the benchmark. Prints a table last; exits with 1 if anything failed.
#
#   tools/peer_check.sh [--build FOLDER] [STEP..]     default: build/cuda and all steps
#
# Steps: one sanitize sass two procs bench. The first three run side by side: `one` on GPU 0,
# `sanitize` on GPU 1. EPT_LOG=FOLDER keeps the logs, EPT_PEER_TRIALS=N kills N processes per case.
set -u -o pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/cuda
if [ "${1:-}" = --build ]; then
  build=$2
  shift 2
fi
steps=" ${*:-one sanitize sass two procs bench} "
tests=$build/bin/device_tests
program=$build/bin/ep_bench
log=${EPT_LOG:-$(mktemp -d)}
mkdir -p "$log"
: >"$log/summary"

# step NAME LIMIT_S COMMAND..
step() {
  local name=$1 limit=$2 status=0 started=$SECONDS verdict=ok note
  shift 2
  timeout -k 5 "$limit" "$@" >"$log/$name.log" 2>&1 || status=$?
  if [ "$status" -eq 0 ] && grep -q '^\[=*\] 0 tests' "$log/$name.log"; then
    status=1 # a filter that matches nothing must not look like a clean run
  fi
  if [ "$status" -ne 0 ]; then
    verdict="FAILED $status"
    echo "---- $name, status $status: $*"
    grep -E -A6 -m4 'Failure|ERROR|Error|error:|Invalid' "$log/$name.log" | cut -c1-300
  fi
  note=$(grep -E 'PASSED|(ERROR|RACECHECK) SUMMARY|kernels:' "$log/$name.log" |
    tail -n 1 | cut -c1-80)
  printf '%-32s %-10s %4d s  %s\n' "$name" "$verdict" $((SECONDS - started)) "$note" \
    >>"$log/summary"
}

# device_tests NAME LIMIT_S FILTER [PREFIX..]
device_tests() {
  local name=$1 limit=$2 filter=$3
  shift 3
  step "$name" "$limit" "$@" "$tests" --gtest_brief=1 "--gtest_filter=$filter"
}

# sanitizer TOOL GPUS: a few replays of one layout, in both modes
sanitizer() {
  EPT_REPLAYS=10 device_tests "$1_${2,,}" 60 "$2/CudaGraphs.TenThousand*/expert_major_*" \
    compute-sanitizer --tool "$1" --error-exitcode 9
}

machine_code() {
  # protocolE5: the litmus test that waits for the source only, on purpose
  step sass 60 bash -c 'cuobjdump --dump-sass "$1" | python3 "$2" --must-flag protocolE5' _ \
    "$tests" "$root/tools/check_sass.py"
}

# bench TOKENS MODE FORMAT LAYOUT SMS
bench() {
  local name=bench_$1_$3_$4_$5
  step "$name" 60 "$program" --exec cuda --wire peer-memory --gpus 2 --tokens "$1" --mode "$2" \
    --hidden 7168 --topk 8 --experts 256 --format "$3" --layout "$4" --sms "$5" --iterations 100
  echo "== $1 tokens, $2, $3, $4, $5 SMs (0: the default)"
  grep -h -E '^(copies|dispatch|combine|pair|         to)|^peer-memory .*(yes|NO|no)' \
    "$log/$name.log" | cut -c1-120
}

wanted() { case "$steps" in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

if wanted one; then
  CUDA_VISIBLE_DEVICES=0 device_tests one_gpu 120 'OneGpu/*:PeerMemoryCreate*' &
fi
if wanted sanitize; then
  (
    export CUDA_VISIBLE_DEVICES=1
    # initcheck runs one kernel after the other: kernels of two ranks would wait for ever, and
    # gpu_check.sh runs it where one kernel carries all ranks.
    for tool in memcheck racecheck; do sanitizer $tool OneGpu; done
  ) &
fi
if wanted sass; then machine_code & fi
wait
if wanted two; then device_tests two_gpus 120 'TwoGpus*:-*PeerProcesses*'; fi
if wanted sanitize; then sanitizer memcheck TwoGpus; fi
if wanted procs; then device_tests processes 150 'TwoGpus/PeerProcesses*'; fi
grep -h -E ' stale, |told after' "$log"/one_gpu.log "$log"/two_gpus.log "$log"/processes.log \
  2>/dev/null
if wanted bench; then
  for format in fp8 bf16; do
    for layout in rank_major expert_major; do
      bench 8 slotted $format $layout 0
      bench 128 slotted $format $layout 0
      bench 4096 counted $format $layout 0
    done
  done
  for sms in 8 16 32 128; do
    bench 8 slotted bf16 rank_major $sms
    bench 128 slotted bf16 rank_major $sms
  done
fi

echo
cat "$log/summary"
if [ -s "$log/summary" ] && ! grep -q FAILED "$log/summary"; then
  echo "peer_check: all good in $SECONDS s"
else
  echo "peer_check: FAILED"
  exit 1
fi
