#!/usr/bin/env bash
# Installs the Debian packages that are missing, and nothing when none is:
# install_deps.sh demo|test|rdma
#   demo  what the library and ep_bench need to build
#   test  all that `make test` uses, nvcc apart
#   rdma  what the virtual machine of `make test-rdma` is made of, and what runs in it
set -euo pipefail

# "command or file : package"; a name with a slash is a file.
demo_needs=(g++:g++ cmake:cmake ninja:ninja-build
  /usr/include/boost/lockfree/spsc_queue.hpp:libboost-dev)
test_needs=("${demo_needs[@]}" python3:python3 git:git clang++:clang
  clang-format-16:clang-format-16 ccache:ccache pkg-config:pkg-config
  /usr/include/rdma/fi_rma.h:libfabric-dev /usr/include/gtest/gtest.h:libgtest-dev
  /usr/include/boost/property_tree/json_parser.hpp:libboost-dev
  /usr/include/infiniband/efadv.h:libibverbs-dev /etc/libibverbs.d/efa.driver:ibverbs-providers
  /usr/include/rdma/fi_domain.h:libfabric-dev
  /usr/share/doc/libclang-rt-dev:libclang-rt-dev)

rdma_needs=("${test_needs[@]}" qemu-system-x86_64:qemu-system-x86 cpio:cpio busybox:busybox-static
  /sbin/modprobe:kmod ip:iproute2 ibv_rc_pingpong:ibverbs-utils fi_pingpong:libfabric-bin)

case "${1:-}" in
  demo) needs=("${demo_needs[@]}") ;;
  test) needs=("${test_needs[@]}") ;;
  rdma) needs=("${rdma_needs[@]}") ;;
  *) echo "usage: $0 demo|test|rdma" >&2; exit 2 ;;
esac

missing=()
for need in "${needs[@]}"; do
  probe=${need%:*}
  case "$probe" in
    /*) [ -e "$probe" ] || missing+=("${need##*:}") ;;
    *) command -v "$probe" >/dev/null || missing+=("${need##*:}") ;;
  esac
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "install_deps: no apt-get here; install what corresponds to: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps: run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "install_deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq ||
  echo "install_deps: apt-get update failed; going on with the package lists that are here" >&2
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
