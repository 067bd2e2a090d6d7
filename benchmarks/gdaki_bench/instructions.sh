#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Counts the machine instructions of the steps of a put: benchmarks/gdaki_bench/instructions.sh
#   needs nvcc, and cuobjdump or nvdisasm (NVDISASM=path); no GPU. Padding is not counted.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvcc -std=c++20 -O3 -arch="${ARCH:-sm_90}" -Iinclude -cubin -o "$work/cubin" \
  benchmarks/gdaki_bench/instructions.cu
if command -v cuobjdump >/dev/null; then
  cuobjdump --dump-sass "$work/cubin" >"$work/sass"
else
  "${NVDISASM:-nvdisasm}" -c "$work/cubin" >"$work/sass"
fi
echo "instructions of a step, with operand loads and exit:"
awk '
  /Function : /  { name = $3 }
  /^\.text\./    { name = $1; sub(/^\.text\./, "", name); sub(/:$/, "", name) }
  /\/\*[0-9a-f]+\*\/ +[@!A-Z]/ && !/NOP|BRA/ { count[name]++ }
  END {
    if (!count["count_baseline"]) { print "no instructions found" > "/dev/stderr"; exit 1 }
    for (name in count) printf "%-24s %d\n", substr(name, 7), count[name]
  }' "$work/sass" | sort
