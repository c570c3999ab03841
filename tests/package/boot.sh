#!/bin/sh
# Boots systemd as PID 1 of a machine of its own: this host's files under a layer that is thrown away, and namespaces. As root.
# Usage: boot.sh FOLDER; the machine ends with this process. It sees FOLDER/shared under /shared.
# A host that boots by something else, or a container, will do: nothing is asked of it but the programs of Debian's package systemd.
set -eu
if [ "${2:-}" != inside ]; then
  mkdir -p "$1/layer" "$1/shared"
  # Of every hierarchy of control groups a part of its own, which becomes the machine's root.
  awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/self/mounts | while read -r mount; do
    group=$mount/freeride-machine-$$
    mkdir -p "$group"
    for file in cpuset.cpus cpuset.mems; do
      if [ -f "$mount/cpuset.effective_cpus" ] && [ -f "$group/$file" ]; then cat "$mount/$file" >"$group/$file"; fi
    done
    echo $$ >"$group/cgroup.procs"
  done
  exec unshare --mount --pid --ipc --uts --net --cgroup --fork --kill-child=KILL -- "$0" "$1" inside
fi

mount --make-rprivate /
mounts=$(awk '$3 == "cgroup" || $3 == "cgroup2" { print $2, $3, $4 }' /proc/self/mounts)
mount -t tmpfs -o mode=0755 machine "$1/layer"
mkdir "$1/layer/changed" "$1/layer/work" "$1/layer/root"
root=$1/layer/root
mount -t overlay -o "lowerdir=/,upperdir=$1/layer/changed,workdir=$1/layer/work" machine "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for name in null zero full random urandom tty; do
  touch "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
echo "$mounts" | while read -r where type options; do
  case "$where" in
    /sys/fs/cgroup) mount -t "$type" "$type" "$root/sys/fs/cgroup" ;;
    *)
      mountpoint -q "$root/sys/fs/cgroup" || mount -t tmpfs -o mode=0755 tmpfs "$root/sys/fs/cgroup"
      mkdir -p "$root$where"
      if [ "$type" = cgroup ]; then options=${options#rw,}; else options=rw; fi
      mount -t "$type" -o "$(echo "$options" | sed 's/\(relatime\|nosuid\|nodev\|noexec\|noatime\),*//g')" cgroup "$root$where"
      ;;
  esac
done
mkdir -p "$root/shared" "$root/old"
mount --bind "$1/shared" "$root/shared"
# The host's own services are none of the machine's, nor are the kernel's settings, which both share.
rm -rf "$root/etc/systemd/system" "$root/etc/fstab" "$root/etc/freeride" "$root/var/lib/freeride"
mkdir "$root/etc/systemd/system"
for unit in systemd-sysctl systemd-modules-load systemd-remount-fs; do
  ln -s /dev/null "$root/etc/systemd/system/$unit.service"
done
for unit in sys-kernel-debug sys-kernel-tracing sys-fs-fuse-connections dev-hugepages dev-mqueue; do
  ln -s /dev/null "$root/etc/systemd/system/$unit.mount"
done
echo machine >"$root/etc/hostname"
cd "$root"
pivot_root . old
umount -l /old
exec env -i container=freeride-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=basic.target --log-target=console --show-status=no
