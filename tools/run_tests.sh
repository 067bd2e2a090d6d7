#!/usr/bin/env bash
# All that a change must pass, stage by stage; stops at the first stage that fails.
#   EPT_REQUIRE  words that turn "not here" into a failure; `nvcc` is the only one so far
set -uo pipefail
cd "$(dirname "$0")/.."

log_dir=build/logs
mkdir -p "$log_dir"
summary=()
passed=0 failed=0 skipped=0
jobs=$(nproc)

# The last line is for readers that look for a count, people and programs alike.
finish() {
  printf '\nstage            seconds  result\n'
  printf '%s\n' "${summary[@]}"
  printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  exit "$1"
}

# stage NAME COMMAND...: runs it with its output in a log, and shows the log when it fails.
stage() {
  local name=$1 log="$log_dir/${1// /-}.log" start=$SECONDS result=ok
  shift
  printf '== %-16s ' "$name"
  "$@" >"$log" 2>&1 </dev/null || result=FAILED
  count_tests "$log"
  printf '%4d s  %s%s\n' $((SECONDS - start)) "$result" "${counted:+  ($counted)}"
  summary+=("$(printf '%-16s %7d  %s%s' "$name" $((SECONDS - start)) "$result" \
    "${counted:+  ($counted)}")")
  [ "$result" = ok ] && return
  tail -n 80 "$log"
  echo "== the whole log: $log"
  [ "$failed" -gt 0 ] || failed=1
  finish 1
}

# Adds ctest's closing line in the log to the totals; `counted` says what this stage had.
count_tests() {
  counted=
  local line bad total none
  line=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests failed out of [0-9]+' "$1" | tail -n 1)
  [ -n "$line" ] || return
  bad=$(sed -E 's/.*passed, ([0-9]+) tests.*/\1/' <<<"$line")
  total=$(sed -E 's/.*out of ([0-9]+).*/\1/' <<<"$line")
  none=$(grep -cE '\*\*\*(Skipped|Not Run)' "$1")
  passed=$((passed + total - bad - none)) failed=$((failed + bad)) skipped=$((skipped + none))
  counted="$((total - bad - none)) passed, $bad failed, $none skipped"
}

# The presets of one compiler and one set of flags share objects, wherever their trees lie.
export CCACHE_NOHASHDIR=1
build() { cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs"; }

command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
if [[ " ${EPT_REQUIRE:-} " == *" nvcc "* ]] && ! command -v nvcc >/dev/null; then
  echo "EPT_REQUIRE names nvcc, but nvcc was not found" >&2
  failed=1
  finish 1
fi

stage check python3 tools/check.py
for preset in host asan tsan; do
  stage "build $preset" build "$preset"
  stage "test $preset" ctest --preset "$preset" -j "$jobs"
done
if command -v nvcc >/dev/null; then
  stage "build cuda" build cuda-compile
else
  summary+=("$(printf '%-16s %7s  %s' 'build cuda' - 'NOT RUN: nvcc was not found')")
fi
finish 0
