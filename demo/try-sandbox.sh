#!/bin/sh
# Whether bubblewrap works here, before minutes of building: the demo's side tasks execute in it.
trial="bwrap --unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-net --die-with-parent
       --ro-bind / / --proc /proc --dev /dev true"
said=$($trial 2>&1) && exit 0
hint="user namespaces are needed: sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=10000, \
kernel.apparmor_restrict_unprivileged_userns=0; in Docker --security-opt seccomp=unconfined"
# The fifth column is where something is mounted.
if ! cut -d ' ' -f 5 /proc/self/mountinfo | grep -qx /; then
  hint="/ must be a mount point (not a plain chroot): enter it with pivot_root, systemd-nspawn or a container"
fi
case "$said" in
  *"Can't mount proc"*) hint="this container hides parts of /proc: start it with --security-opt systempaths=unconfined" ;;
esac
echo "demo: the bubblewrap sandbox does not work here: $said; $hint" >&2
exit 1
