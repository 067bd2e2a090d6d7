#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs inside the virtual machine of rdma_vm.sh: makes a soft-RoCE device and tests over it. Only
# function: the processor is emulated. EPT_BIN comes from test_rdma.sh, which writes it
# above this script's text.
set -u
status=0
count=0

packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }

# step NAME LIMIT_S COMMAND..: prints one line, and the log when it fails. A command that sends
# no packet through the device has tested something else.
step() {
  local name=$1 limit=$2 result=ok before sent
  shift 2
  before=$(packets)
  timeout -k 5 "$limit" "$@" >"$OUT/$name.log" 2>&1 </dev/null || result="FAILED ($?)"
  sent=$(($(packets) - before))
  if [ "$result" = ok ] && [ "$sent" -lt 10 ]; then result="FAILED (not over rxe)"; fi
  count=$((count + 1))
  printf '%-24s %-22s %7d packets  %s\n' "$name" "$result" "$sent" \
    "$(grep -E 'PASSED|iters in|  yes  ' "$OUT/$name.log" | tail -n 1 | cut -c1-60)"
  [ "$result" = ok ] && return
  status=1
  tail -n 25 "$OUT/$name.log"
}

ulimit -l unlimited
ip link set lo up
ip link add rdma_a type veth peer name rdma_b
ip addr add 10.77.0.1/24 dev rdma_a
ip link set rdma_a up mtu 4200
ip link set rdma_b up mtu 4200
rdma link add rxe0 type rxe netdev rdma_a || exit 1
rdma link show

# Two processes, reliable connection, address index 1: RoCE v2 over IPv4.
pingpong() {
  "$@" & local server=$!
  sleep 2
  "$@" 10.77.0.1 && wait "$server"
}
export -f pingpong
step rc_pingpong 60 bash -c 'pingpong ibv_rc_pingpong -g 1 -n 20 -s 4096'
step fi_pingpong_verbs_msg 90 bash -c 'pingpong fi_pingpong -p verbs -e msg -I 10 -S 4096'

# What rxm would ask of a completion queue is more than rxe has (32767 entries).
export FI_UNIVERSE_SIZE=8 FI_OFI_RXM_MSG_TX_SIZE=64 FI_OFI_RXM_MSG_RX_SIZE=64
export FI_VERBS_IFACE=rdma_a EPT_TEST_PROVIDER='verbs;ofi_rxm' EPT_PROVIDER='verbs;ofi_rxm'
if [ -x "$EPT_BIN/libfabric_tests" ]; then
  # A process per case, as ctest does it, so that one which crashes has a name: closing an rxm
  # endpoint of libfabric 1.17 while a peer connects has ended there with signal 11.
  one_by_one() {
    local filter=$1 names name
    set -o pipefail
    names=$("$EPT_BIN/libfabric_tests" --gtest_list_tests "--gtest_filter=$filter" |
      awk '/^[^ ]+[.]( |$)/ { suite = $1 } /^  / { print suite $1 }') || return 1
    [ -n "$names" ] || return 1
    for name in $names; do
      timeout 250 "$EPT_BIN/libfabric_tests" --gtest_brief=1 "--gtest_filter=$name" |
        grep -F '[  PASSED  ] 1 test.' && continue
      echo "FAILED: $name"
      return 1
    done
    echo "PASSED one by one: $(wc -w <<<"$names") tests"
  }
  export -f one_by_one
  export EPT_BIN
  step endpoint_verbs_rxm 300 bash -c "one_by_one '*LibfabricEndpoint*tcp*:*LibfabricWire*tcp*'"
  step conformance_verbs_rxm 400 bash -c "one_by_one '*Conformance*tcp_r2*:*Conformance*tcp_r3*'"
fi
# Ranks that are processes, dispatch and combine, every result compared.
if "$EPT_BIN/ep_bench" --help 2>/dev/null | grep -q -- --spawn; then
  step ep_bench_verbs_rxm 200 "$EPT_BIN/ep_bench" --wire 'libfabric:verbs;ofi_rxm' --spawn 2 \
    --tokens 8 --hidden 256 --topk 2 --experts 8 --iterations 3
fi
echo "$count steps, $([ $status -eq 0 ] && echo all good || echo SOME FAILED)"
exit $status
