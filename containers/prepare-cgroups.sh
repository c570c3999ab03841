#!/usr/bin/env bash
# Makes the host's control group "freeride", in which a worker in a container puts its side tasks (compose.cgroup-v1.yaml, -v2). As root,
# after each boot; harmless when it is there.
#
# It lies beside the engine's own group and is idle as a whole: the kernel weighs groups before it looks at what is in them, so a side task
# anywhere below an ordinary group takes half of a core that training wants, whatever its own priority.
set -euo pipefail
group=freeride
fail() { echo "prepare-cgroups.sh: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "only root may make control groups on the host"

mount_of() {  # of a version 1 controller
  awk -v want="$1" '$9 == "cgroup" || $8 == "cgroup" || $10 == "cgroup" { n = split($NF, o, ","); for (i = 1; i <= n; i++) if (o[i] == want) { print $5; exit } }' /proc/self/mountinfo
}

idle() { # FOLDER: idle since Linux 5.15, else the least weight
  echo 1 2>/dev/null >"$1/cpu.idle" || echo 2 2>/dev/null >"$1/cpu.shares" || echo 1 >"$1/cpu.weight"
}

if [ -n "$(mount_of cpu)" ]; then
  for controller in cpu memory pids cpuset; do
    mount=$(mount_of "$controller")
    [ -n "$mount" ] || fail "the controller '$controller' is not mounted; see /proc/cgroups"
    mkdir -p "$mount/$group"
    if [ "$controller" = cpuset ]; then
      cat "$mount/cpuset.mems" >"$mount/$group/cpuset.mems"
      cat "$mount/cpuset.cpus" >"$mount/$group/cpuset.cpus"
    fi
  done
  idle "$(mount_of cpu)/$group"
  echo "control groups of version 1: use compose.cgroup-v1.yaml"
else
  [ -f /sys/fs/cgroup/cgroup.controllers ] || fail "no control groups are mounted at /sys/fs/cgroup"
  for controller in cpu memory pids cpuset; do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control || fail "the kernel does not give away the controller '$controller'; see /sys/fs/cgroup/cgroup.controllers"
  done
  mkdir -p "/sys/fs/cgroup/$group"
  idle "/sys/fs/cgroup/$group"
  echo "control groups of version 2: use compose.cgroup-v2.yaml"
fi
