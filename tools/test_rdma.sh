#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests over RDMA verbs without an RDMA device: soft-RoCE in a virtual machine. Needs no privilege
# but to install what is missing. Where no such machine can be made it says so and succeeds;
# EPT_REQUIRE=rdma makes that a failure.
set -uo pipefail
cd "$(dirname "$0")/.."

not_run() {
  echo "test-rdma: NOT RUN: $*" >&2
  if [[ " ${EPT_REQUIRE:-} " == *" rdma "* ]]; then exit 1; fi
  exit 0
}

tools/install_deps.sh rdma || not_run "packages are missing"
if [ -z "${EPT_RDMA_BIN:-}" ]; then
  cmake --preset host >/dev/null || exit 1
  targets=(ep_bench)
  if cmake --build --preset host --target help | grep -q '^libfabric_tests:'; then
    targets+=(libfabric_tests)
  fi
  cmake --build --preset host --target "${targets[@]}" || exit 1
fi
guest=$(mktemp)
trap 'rm -f "$guest"' EXIT
printf 'EPT_BIN=%q\n' "${EPT_RDMA_BIN:-$PWD/build/host/bin}" >"$guest"
cat tools/rdma_guest.sh >>"$guest"
EPT_VM_TIMEOUT=${EPT_VM_TIMEOUT:-900} tools/rdma_vm.sh "$guest"
status=$?
if [ $status -eq 77 ]; then not_run "see above"; fi
echo "test-rdma: $([ $status -eq 0 ] && echo passed || echo FAILED) after $SECONDS s"
exit $status
