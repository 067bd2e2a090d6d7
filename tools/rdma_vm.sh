#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Boots a small virtual machine that has soft-RoCE (rxe) and runs a script in it, as root:
#
#   tools/rdma_vm.sh GUEST_SCRIPT
#
# The guest sees this machine's files, read only below a layer that is forgotten, so that a program
# built here runs there. What it writes to $OUT comes back in build/rdma-vm/out. The exit status is
# the script's; 77: no virtual machine can be made here, and the reason was printed.
#   EPT_VM_TIMEOUT  seconds, 600 unless set    EPT_VM_CPUS  2 unless set    EPT_VM_KVM=1  uses KVM
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$root/build/rdma-vm
script=$(realpath "${1:?usage: tools/rdma_vm.sh GUEST_SCRIPT}")
mkdir -p "$work/out"

cannot() {
  echo "rdma_vm: NOT POSSIBLE HERE: $*" >&2
  exit 77
}

# The distribution's kernel, unpacked and not installed. The cloud kernel has no rxe.
find_kernel() {
  local found
  found=$(echo "$work"/kernel/boot/vmlinuz-*)
  if [ ! -e "$found" ]; then
    local package
    package=$(apt-cache depends linux-image-amd64 2>/dev/null |
      sed -nE 's/^ *\|?Depends: (linux-image-[0-9].*-amd64)$/\1/p' | tail -n 1)
    [ -n "$package" ] || cannot "apt knows no linux-image-amd64"
    (cd "$work" && apt-get download -qq "$package" 2>&1) || cannot "$package could not be fetched"
    dpkg -x "$work/$package"_*.deb "$work/kernel"
    found=$(echo "$work"/kernel/boot/vmlinuz-*)
  fi
  release=${found##*/vmlinuz-}
  kernel=$found
}

# A first root of busybox and modules: it mounts this machine's files and hands over to them.
make_first_root() {
  local image=$work/initramfs-$release.img first
  if [ "$image" -nt "$root/tools/rdma_vm.sh" ]; then return; fi
  first=$(mktemp -d)
  mkdir -p "$first"/{bin,proc,sys,dev,system,modules}
  cp "$(command -v busybox)" "$first/bin/busybox"
  local name path module
  for name in sh mount insmod mkdir cat echo poweroff chroot; do
    ln -s busybox "$first/bin/$name"
  done
  [ -f "$work/kernel/lib/modules/$release/modules.dep" ] ||
    /sbin/depmod -b "$work/kernel" "$release"
  # rxe asks for "crc32" by name, and nothing in the guest would load it.
  for module in crc32_generic virtio_pci 9pnet_virtio 9p overlay veth ib_core ib_uverbs rdma_ucm \
    rdma_rxe; do
    /sbin/modprobe -d "$work/kernel" -S "$release" --show-depends "$module"
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/modules"
  while read -r path; do
    cp "$path" "$first/modules/"
    echo "/modules/${path##*/}" >>"$first/list"
  done <"$work/modules"
  cat >"$first/init" <<'INIT'
#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read module; do insmod "$module" || echo "guest: insmod $module failed"; done </list
mkdir -p /below /above
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /below || poweroff -f
mount -t tmpfs above /above
mkdir /above/upper /above/work
mount -t overlay -o lowerdir=/below,upperdir=/above/upper,workdir=/above/work system /system
mount -t proc proc /system/proc
mount -t sysfs sys /system/sys
mount -t devtmpfs dev /system/dev
mkdir -p /system/dev/shm
mount -t tmpfs shm /system/dev/shm
mount -t tmpfs run /system/run
mkdir -p /system/run/out
mount -t 9p -o trans=virtio,version=9p2000.L,rw,cache=none,msize=512000 out /system/run/out
read up rest </proc/uptime
echo "guest: ready after $up s"
OUT=/run/out PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot /system /bin/bash /run/out/guest.sh
echo $? >/system/run/out/status
poweroff -f
INIT
  chmod +x "$first/init"
  (cd "$first" && find . | cpio -o -H newc --quiet | gzip -1) >"$image"
  rm -rf "$first"
}

for program in qemu-system-x86_64 cpio busybox; do
  command -v "$program" >/dev/null || cannot "$program is missing: tools/install_deps.sh rdma"
done
[ -x /sbin/depmod ] || cannot "depmod is missing: tools/install_deps.sh rdma"
find_kernel
make_first_root

cp "$script" "$work/out/guest.sh"
rm -f "$work/out/status"
# Emulated unless asked for: where this machine is virtual itself, KVM may be there and hang.
accelerator=tcg,thread=multi cpu=max
if [ "${EPT_VM_KVM:-0}" = 1 ]; then accelerator=kvm cpu=host; fi
timeout -k 5 "${EPT_VM_TIMEOUT:-600}" qemu-system-x86_64 -M q35 -accel "$accelerator" -cpu "$cpu" \
  -smp "${EPT_VM_CPUS:-2}" -m 2048 -nodefaults -no-user-config -display none -serial stdio \
  -no-reboot -kernel "$kernel" -initrd "$work/initramfs-$release.img" \
  -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=unstable nokaslr audit=0" \
  -fsdev local,id=h,path=/,security_model=none,readonly=on,multidevs=remap \
  -device virtio-9p-pci,fsdev=h,mount_tag=host \
  -fsdev "local,id=o,path=$work/out,security_model=none" \
  -device virtio-9p-pci,fsdev=o,mount_tag=out </dev/null | tr -d '\r'
[ -f "$work/out/status" ] || { echo "rdma_vm: the guest did not finish" >&2; exit 1; }
exit "$(cat "$work/out/status")"
