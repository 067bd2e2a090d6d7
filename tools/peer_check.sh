#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What needs two GPUs of one host, in a few minutes: device tests, graphs, killed processes, litmus
# tests, and the benchmark of peer memory. Prints a table last; exits with 1 if anything failed.
#
#   tools/peer_check.sh [--build FOLDER] [STEP..]     default: build/cuda and all steps
#
# Steps: tests matrix procs litmus sass sanitize bench
set -u -o pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/cuda
if [ "${1:-}" = --build ]; then
  build=$2
  shift 2
fi
steps=" ${*:-tests matrix procs litmus sass sanitize bench} "
tests=$build/bin/device_tests
program=$build/bin/ep_bench
log=${EPT_LOG:-$(mktemp -d)}
summary=()
failed=0

# step NAME LIMIT_S COMMAND..
step() {
  local name=$1 limit=$2 status=0 started=$SECONDS
  shift 2
  timeout -k 5 "$limit" "$@" >"$log/$name.log" 2>&1 || status=$?
  if [ "$status" -eq 0 ] && grep -q '^\[=*\] 0 tests' "$log/$name.log"; then
    status=1 # a filter that matches nothing must not look like a clean run
  fi
  if [ "$status" -ne 0 ]; then
    failed=1
    echo "---- $name, status $status: $*"
    grep -E -A6 -m4 'Failure|ERROR|Error|error:|Invalid' "$log/$name.log" | cut -c1-300
  fi
  local verdict=ok note
  [ "$status" -eq 0 ] || verdict="FAILED $status"
  note=$(grep -E 'PASSED|(ERROR|RACECHECK) SUMMARY|kernels:' "$log/$name.log" |
    tail -n 1 | cut -c1-80)
  summary+=("$(printf '%-26s %-10s %4d s  %s' "$name" "$verdict" $((SECONDS - started)) "$note")")
}

wanted() { case "$steps" in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
filtered() { echo "--gtest_filter=$1"; }

if wanted tests; then
  step peer_memory 60 "$tests" --gtest_brief=1 "$(filtered '*PeerMemory*')"
  step graphs_one_gpu 120 "$tests" --gtest_brief=1 "$(filtered 'OneGpu/CudaGraphs*')"
  step graphs_two_gpus 120 "$tests" --gtest_brief=1 "$(filtered 'TwoGpus/CudaGraphs*')"
fi
if wanted matrix; then
  step matrix 120 "$tests" --gtest_brief=1 "$(filtered 'TwoGpus/PeerMatrix*:TwoGpusRandom*')"
fi
if wanted procs; then
  step processes 150 "$tests" --gtest_brief=1 "$(filtered 'TwoGpus/PeerProcesses*')"
  grep -h 'told after' "$log/processes.log"
fi
if wanted litmus; then
  step litmus 90 "$tests" --gtest_brief=1 "$(filtered '*Litmus*')"
  grep -h ' stale, ' "$log/litmus.log"
fi
if wanted sass; then
  step sass 60 bash -c 'cuobjdump --dump-sass "$1" | python3 "$2" --must-flag protocolE5' _ \
    "$tests" "$root/tools/check_sass.py"
fi
if wanted sanitize; then
  export EPT_REPLAYS=10
  few='CudaGraphs.TenThousand*/expert_major_*'
  for tool in memcheck initcheck racecheck; do
    step "${tool}_one_gpu" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests" \
      --gtest_brief=1 "$(filtered "OneGpu/$few")"
  done
  step memcheck_two_gpus 60 compute-sanitizer --tool memcheck --error-exitcode 9 "$tests" \
    --gtest_brief=1 "$(filtered "TwoGpus/$few")"
  unset EPT_REPLAYS
fi
# bench TOKENS MODE FORMAT LAYOUT SMS
bench() {
  local name=bench_$1_$3_$4_$5
  step "$name" 60 "$program" --exec cuda --wire peer-memory --gpus 2 --tokens "$1" --mode "$2" \
    --hidden 7168 --topk 8 --experts 256 --format "$3" --layout "$4" --sms "$5" --iterations 100
  echo "== $1 tokens, $2, $3, $4, $5 SMs (0: the default)"
  grep -h -E '^(copies|dispatch|combine|pair|         to)|^peer-memory .*(yes|NO|no)' \
    "$log/$name.log" | cut -c1-120
}

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
printf '%s\n' "${summary[@]}"
if [ "$failed" -eq 0 ]; then
  echo "peer_check: all good in $SECONDS s"
else
  echo "peer_check: FAILED"
fi
exit "$failed"
