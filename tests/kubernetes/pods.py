"""Pods as a Docker engine runs them: what a kubelet makes of a pod's specification, for the few fields that are used.
What this does not know is a KeyError, so that no field of the manifests goes untried in silence.

Not as in a cluster: all pods share one network, in which Services' names mean 127.0.0.1; `docker run --init` stands for
a process namespace that the pod's containers share."""

import pathlib
import re
import shutil
import subprocess

from rig.processes import Failure

LABEL = "freeride-kubernetes-test"
# Whose meaning is a scheduler's, the API server's or the test's.
NOT_OURS = {"serviceAccountName", "priorityClassName", "nodeSelector", "restartPolicy", "terminationGracePeriodSeconds"}
OFF = {"automountServiceAccountToken", "enableServiceLinks"}  # nothing is done only where they are false


def milli(cpu):
    """Thousandths of a core: 100m, or whole ones, which YAML may take for a number."""
    text = str(cpu)
    return int(text[:-1]) if text.endswith("m") else int(text) * 1000


class Secret:
    """A Secret's or ConfigMap's volume, as the kubelet keeps it: a folder that everybody may write, in which each name
    is a link through ..data to the present version."""

    def __init__(self, folder, data, mode):
        self.folder, self._mode, self._version = pathlib.Path(folder), mode, 0
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o1777)
        self.publish(data)

    def publish(self, data):
        """Other content: the link changes at once, and the former version goes."""
        former, self._version = self.folder / f"..version_{self._version}", self._version + 1
        fresh = self.folder / f"..version_{self._version}"
        fresh.mkdir()
        fresh.chmod(0o755)
        for name, content in data.items():
            (fresh / name).write_bytes(content)
            (fresh / name).chmod(self._mode)
        (self.folder / "..data_tmp").symlink_to(fresh.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")
        for name in data:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        for link in self.folder.iterdir():
            if not link.name.startswith("..") and link.name not in data:
                link.unlink()
        shutil.rmtree(former, ignore_errors=True)


class Host:
    """What a kubelet has: an engine, a folder for volumes, and other folders in the place of the host's own.

    `paths`: {path in the manifests: here}, of hostPath volumes; `data`: {name of a Secret or ConfigMap: {file: bytes}};
    `network`: the container whose network all pods share."""

    def __init__(self, engine, folder, paths, data, network):
        self.engine, self.folder, self.paths, self.data = engine, pathlib.Path(folder), paths, data
        self.network = network

    def path(self, path):
        for known, here in self.paths.items():
            if path == known or path.startswith(known + "/"):
                return pathlib.Path(str(here) + path[len(known) :])
        raise KeyError(path)


class Pod:
    """`values`: what fieldRef says. `replace`: {container: {field: value}}, where the user's part is the test's."""

    def __init__(self, host, name, template, values=None, replace=None):
        self.host, self.name = host, name
        self.spec = template["spec"]
        self.values, self.replace = {"metadata.namespace": "freeride", **(values or {})}, replace or {}
        self.secrets = {}  # of volumes
        self._shared, self._volumes = self._read_pod()

    # ---- reading
    def _read_pod(self):
        known = {"containers", "initContainers", "volumes", "securityContext", "hostPID", "shareProcessNamespace"}
        for key, value in self.spec.items():
            if key not in known | NOT_OURS and not (key in OFF and value is False):
                raise KeyError(f"{self.name}: {key}: {value}")
        context = self.spec.get("securityContext", {})
        if context not in ({}, {"seccompProfile": {"type": "RuntimeDefault"}}):  # which is the engine's default
            raise KeyError(f"{self.name}: {context}")
        flags = ["--pid", "host"] if self.spec.get("hostPID") else []
        flags += ["--init"] if self.spec.get("shareProcessNamespace") else []
        return flags, {volume["name"]: self._make_volume(**volume) for volume in self.spec["volumes"]}

    def _make_volume(self, name, **source):
        ((kind, how),) = source.items()
        folder = self.host.folder / self.name / name
        if kind == "emptyDir":
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)  # as the kubelet leaves it
        elif kind == "hostPath":
            folder = self.host.path(how["path"])
            if how["type"] == "DirectoryOrCreate":
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o755)
            elif not {"Directory": folder.is_dir, "File": folder.is_file}[how["type"]]():
                raise FileNotFoundError(folder)
        elif kind in ("secret", "configMap"):
            called = how.get("secretName") or re.sub(r"-[a-z0-9]{10}$", "", how["name"])
            shutil.rmtree(folder, ignore_errors=True)
            self.secrets[name] = Secret(folder, self.host.data[called], how.get("defaultMode", 0o644))
        else:
            raise KeyError(f"{self.name}: a volume of {kind}")
        return folder

    def _value(self, entry):
        if "value" in entry:
            return entry["value"]
        path = entry["valueFrom"]["fieldRef"]["fieldPath"]
        return self.values[path]

    def run_flags(self, container):
        """(flags, image, words) of `docker run`."""
        one = {**container, **self.replace.get(container["name"], {})}
        env = {entry["name"]: self._value(entry) for entry in one.pop("env", [])}
        flags = [*self._shared, "--network", f"container:{self.host.network}"]
        for name, value in env.items():
            flags += ["--env", f"{name}={value}"]
        for mount in map(dict, one.pop("volumeMounts", [])):
            end = ":ro" if mount.pop("readOnly", False) else ""
            flags += ["--volume", f"{self._volumes[mount.pop('name')]}:{mount.pop('mountPath')}{end}"]
            if mount:
                raise KeyError(f"{self.name}: {mount}")
        flags += one.pop("flags", [])  # of the test's
        flags += self._security_flags(one.pop("securityContext", {}))
        resources = one.pop("resources", {})
        if memory := resources.get("limits", {}).get("memory"):
            flags += ["--memory", memory.replace("Gi", "g").replace("Mi", "m")]
        if cpu := resources.get("requests", {}).get("cpu"):
            flags += ["--cpu-shares", str(milli(cpu) * 1024 // 1000)]
        words = [
            re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], word)
            for word in one.pop("command") + one.pop("args", [])
        ]
        image = one.pop("image")
        for other in ("name", "ports", "readinessProbe", "livenessProbe"):
            one.pop(other, None)
        if one:
            raise KeyError(f"{self.name}: {one}")
        return flags, image, words

    def _security_flags(self, context):
        context, flags = dict(context), []
        if "runAsUser" in context:
            flags += ["--user", f"{context.pop('runAsUser')}:0"]
        if context.pop("readOnlyRootFilesystem", False):
            flags += ["--read-only"]
        if context.pop("allowPrivilegeEscalation", True) is False:
            flags += ["--security-opt", "no-new-privileges"]
        capabilities = context.pop("capabilities", {})
        for verb in ("drop", "add"):
            flags += [part for name in capabilities.get(verb, []) for part in (f"--cap-{verb}", name)]
        profile = context.pop("seccompProfile", {"type": "RuntimeDefault"})
        if profile["type"] == "Localhost":
            file = self.host.path("/var/lib/kubelet/seccomp/" + profile["localhostProfile"])
            flags += ["--security-opt", f"seccomp={file}"]
        elif profile["type"] != "RuntimeDefault":
            raise KeyError(profile)
        if context.pop("appArmorProfile", {}).get("type") == "Unconfined":
            flags += ["--security-opt", "apparmor=unconfined"]
        if context:
            raise KeyError(f"{self.name}: {context}")
        return flags

    # ---- running
    def called(self, container):
        return f"{self.host.network}-{self.name}-{container}"

    def start(self):
        for container in self.spec.get("initContainers", []):
            flags, image, words = self.run_flags(container)
            self.host.engine.docker(
                "run", "--rm", "--label", LABEL, *flags, "--entrypoint", words[0], image, *words[1:]
            )
        for container in self.spec["containers"]:
            flags, image, words = self.run_flags(container)
            named = ["--name", self.called(container["name"]), "--label", LABEL]
            self.host.engine.docker("run", "--detach", *named, *flags, "--entrypoint", words[0], image, *words[1:])

    def run(self, container, *words):
        """kubectl exec: (exit code, all that was said)."""
        done = self._docker("exec", self.called(container), *words)
        return done.returncode, done.stdout + done.stderr

    def _docker(self, *words):
        return subprocess.run(
            ["docker", *map(str, words)], env=self.host.engine.env, capture_output=True, text=True, check=False
        )

    def ready(self):
        """Whether all readiness probes say so. An ended container is a Failure with its last words."""
        self.check()
        probes = [
            (container["name"], container["readinessProbe"]["exec"]["command"])
            for container in self.spec["containers"]
            if "readinessProbe" in container
        ]
        return all(self.run(name, *command)[0] == 0 for name, command in probes)

    def check(self):
        for container in self.spec["containers"]:
            name = self.called(container["name"])
            if self._docker("inspect", "--format", "{{.State.Running}}", name).stdout.strip() != "true":
                raise Failure(f"{container['name']} of pod {self.name} has ended: {self.log(container['name'])}")

    def log(self, container, most=3000):
        done = self._docker("logs", self.called(container))
        return (done.stdout + done.stderr)[-most:]

    def stop(self):
        """As the kubelet: SIGTERM to all, and SIGKILL after the pod's grace. Returns {container: exit code}, of which
        137 is a container that had to be killed."""
        names = {container["name"]: self.called(container["name"]) for container in self.spec["containers"]}
        ends = [
            subprocess.Popen(
                ["docker", "stop", "--time", str(self.spec.get("terminationGracePeriodSeconds", 30)), name],
                env=self.host.engine.env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for name in names.values()
        ]
        for end in ends:
            end.wait()
        codes = {
            container: int(self._docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout)
            for container, name in names.items()
        }
        self._docker("rm", "--force", *names.values())
        return codes


def end_all(engine):
    names = engine.docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}").split()
    if names:
        engine.docker("rm", "--force", *names, check=False)
