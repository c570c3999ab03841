"""The image as the manifests for Kubernetes say, under a Docker engine: keys, manager, page, node and recorder; the
example's training in a container of its own, hooked through the host's sockets; a side task of a user's, loaded with a
key; and the end of the node's pod, after which the task goes on from what it saved."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
import manifests
import pods

from engine import EngineError
from rig.ctl import Ctl
from rig.processes import Failure, until
from rig.system import read_lines

NODE, TASK = "trial-node", "kept"
TOKEN = "a-token-for-who-may-look"
# The example's `training`, with this machine's Python and PyTorch: its image and command are the user's.
MACHINES_OWN = ["/usr", "/etc/alternatives", *map(str, pathlib.Path("/etc").glob("python3.*"))]


class Cluster:
    """A node of one, with all that the guide has an operator do before the first kubectl apply."""

    def __init__(self, engine, build, image):
        self.engine, self.build, self.image = engine, build, image
        # Short, since sockets' names are; and where a container's root alone may write.
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="frk-", dir="/run"))
        self.found = manifests.objects(manifests.TRIAL)
        self.pods = []
        self.network = f"{self.root.name}-network"

    def __enter__(self):
        try:
            self._make_keys()
            self._make_host()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        pods.end_all(self.engine)
        shutil.rmtree(self.root, ignore_errors=True)

    def _make_keys(self):
        folder = self.root / "keys"
        folder.mkdir(mode=0o700)
        for name, *words in (NODE, "--role", "node", "--host", NODE), ("admin", "--role", "operator"):
            made = [self.build / "bin/freeride-ctl", "keys", "make", name, *words]
            made += ["--keys-dir", folder / "manager", "--out", folder / f"{name}.key"]
            subprocess.run(made, check=True, capture_output=True, cwd=folder)
        self.keys = folder

    def _make_host(self):
        def content(folder):
            return {file.name: file.read_bytes() for file in folder.glob("*.key")}

        config = next(iter(manifests.of_kind(self.found, "ConfigMap")))
        data = {
            "freeride-manager-key": content(self.keys / "manager"),
            "freeride-authorized": content(self.keys / "manager/authorized"),
            "freeride-node-keys": {f"{NODE}.key": (self.keys / f"{NODE}.key").read_bytes()},
            "freeride-web-token": {"token": TOKEN.encode()},
            "freeride-config": {name: text.encode() for name, text in config["data"].items()},
        }
        paths = {
            "/run/freeride": self.root / "r",
            "/var/lib/freeride": self.root / "s",
            "/var/lib/kubelet/seccomp": self.root / "seccomp",
            "/proc": "/proc",
        }
        # Whose network all share. The Service's name means this host.
        names = [each["metadata"]["name"] for each in manifests.of_kind(self.found, "Service")]
        hosts = [word for name in names for word in ("--add-host", f"{name}:127.0.0.1")]
        own = ["--network", "none", "--label", pods.LABEL, "--name", self.network, "--volume", "/usr:/usr:ro", *hosts]
        self.engine.docker("run", "--detach", *own, self.image, "sleep", "infinity")
        self.host = pods.Host(self.engine, self.root / "volumes", paths, data, self.network)
        number = self.engine.docker("inspect", "--format", "{{.State.Pid}}", self.network)
        self._net = f"/proc/{number}/ns/net"
        # What a user has at the other end of kubectl port-forward: an address, a key and freeride-ctl.
        words = ["--manager", "tcp://127.0.0.1:7420", "--key", str(self.keys / "admin.key")]
        script = self.root / "ctl"
        script.write_text(
            f'#!/bin/sh\nexec nsenter --net={self._net} {self.build}/bin/freeride-ctl "$@" {" ".join(words)}\n'
        )
        script.chmod(0o755)
        self.calls = Ctl(script, dict(os.environ))

    def pod(self, name, template=None, **more):
        template = template or manifests.pods(self.found)[name]
        pod = pods.Pod(self.host, name, template, **more)
        self.pods.append(pod)
        return pod

    def start(self, pod):
        pod.start()
        until(pod.ready, f"pod {pod.name} is ready")

    def logs(self):
        for pod in self.pods:
            for container in pod.spec["containers"]:
                yield f"---- {pod.name}/{container['name']}\n{pod.log(container['name'])}"

    def runners(self):
        """Pids of side tasks' processes, of whatever pod."""
        found = []
        for file in pathlib.Path("/proc").glob("[0-9]*/mountinfo"):
            with contextlib.suppress(OSError):
                words = (file.parent / "cmdline").read_bytes()
                if b"freeride-runner" in words.split(b"\0")[0] and str(self.root) in file.read_text():
                    found.append(int(file.parent.name))
        return found

    def task(self):
        answer = self.calls.ask("task", TASK)
        return answer.json["task"]["state"] if answer.code == 0 else {}

    def metrics(self, host="freeride-web:7473", token=TOKEN):
        """(status, {series: value}) of /metrics, asked from within the cluster's network."""
        code = (
            "import sys, urllib.request, urllib.error\n"
            "request = urllib.request.Request('http://127.0.0.1:7473/metrics', headers=dict(zip(*[iter(sys.argv[1:])] * 2)))\n"
            "try: answer = urllib.request.urlopen(request, timeout=20); print(answer.status); print(answer.read().decode())\n"
            "except urllib.error.HTTPError as error: print(error.code)\n"
        )
        words = ["Host", host] + (["Authorization", f"Bearer {token}"] if token else [])
        done = subprocess.run(
            ["nsenter", f"--net={self._net}", sys.executable, "-c", code, *words],
            capture_output=True,
            text=True,
            check=True,
        )
        status, _, text = done.stdout.partition("\n")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return int(status), {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def of_task(series, name):
    return sum(value for key, value in series.items() if key.startswith(f"{name}{{") and f'task="{TASK}"' in key)


def example(image):
    """The example's template, and what is the user's in it."""
    (job,) = manifests.read((manifests.FOLDER / "examples/training.yaml").read_text())
    template = job["spec"]["template"]
    flags = [word for folder in MACHINES_OWN for word in ("--volume", f"{folder}:{folder}:ro")]
    flags += ["--volume", f"{SOURCE}/hooks/examples:/work:ro"]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    sizes = ["--dim", "64", "--layers", "2", "--seq", "64", "--cores", cores]
    words = ["/usr/bin/python3", "/work/train_gpt.py", "--stages", "2", "--seconds", "3000", *sizes]
    replaced = {"image": image, "command": [*words, "--log-json", "/dev/shm/iterations.jsonl"], "flags": flags}
    return template, {"training": {**replaced, "resources": {}}}


def through(cluster):
    """Returns what was wrong; what cannot go on from there is a Failure."""
    faults = []

    def say(text):
        print(f"  {time.monotonic() - begin:5.1f} s  {text}", flush=True)

    def wrong_unless(good, what):
        if not good:
            faults.append(what)

    begin = time.monotonic()
    manager = cluster.pod("freeride-manager", values={"status.podIP": "10.1.2.3"})
    cluster.start(manager)
    say("the manager is ready, with its keys from Secrets")
    node = cluster.pod("freeride-node", values={"spec.nodeName": NODE})
    cluster.start(node)
    say("the node is ready: it came in with its key")

    def workers():
        return [each["state"] for each in cluster.calls("workers")["workers"]]

    until(lambda: node.check() or sum(each["state"] == "up" for each in workers()) == 2, "two workers are up")
    wrong_unless({each["worker"].split(":")[0] for each in workers()} == {NODE}, f"workers' names: {workers()}")
    template, replace = example(cluster.image)
    job = {"metadata.labels['batch.kubernetes.io/job-name']": "gpt"}
    training = cluster.pod("training", template, values=job, replace=replace)
    training.start()
    until(lambda: training.check() or all(each["stage"] >= 0 for each in workers()), "both ranks are at their workers")
    say("the training is hooked, over the host's sockets")

    cluster.calls("load", cluster.build / "test-plugins/keeper.so", "--name", TASK)
    harvested = until(
        lambda: node.check()
        or training.check()
        or of_task(cluster.metrics()[1], "freeride_task_harvested_seconds_total"),
        "a bubble is harvested",
    )
    say(f"a side task has harvested {harvested:.3f} s of bubbles, by /metrics")
    status, series = cluster.metrics(host="10.1.2.3:7473")  # as Prometheus names a pod
    wrong_unless(status == 200 and series.get("freeride_manager_up") == 1, f"/metrics by the pod's address: {status}")
    wrong_unless(cluster.metrics(token="")[0] == 401, "/metrics is answered without the token")
    wrong_unless(
        cluster.metrics(host="foreign.example")[0] in (400, 403, 421), "/metrics is answered to a foreign name"
    )
    shipped = ["load", "/usr/lib/freeride/plugins/pagerank.so", "--name", "shipped", "--paused"]
    code, said = manager.run("manager", "freeride-ctl", *shipped)
    wrong_unless(code == 0, f"a plugin of the image is not loaded: {said}")
    code, said = node.run("node", "freeride-ctl", "doctor", "--device", "cpu-0")
    wrong_unless(code == 0, f"the doctor is not content: {said}")

    task = cluster.task()
    made = until(
        lambda: cluster.task().get("counters", {}).get("metrics", {}).get("n", 0), "the task says how far it is"
    )
    wrong_unless(cluster.runners(), "no process of the side task is found")
    codes = node.stop()
    say(f"the node's pod has ended: {codes}")
    wrong_unless(codes["node"] == 0 and 137 not in codes.values(), f"the node's pod did not end by itself: {codes}")
    saved = cluster.root / "s/tasks" / TASK / "state"
    wrong_unless(saved.exists(), f"the task's state was not saved: {sorted((cluster.root / 's').glob('tasks/*/*'))}")
    recorded = list((cluster.root / "s/recordings").rglob("*.mcap"))
    wrong_unless(any(file.stat().st_size for file in recorded), "the recorder has written nothing")
    log = cluster.root / "volumes/training/shm/iterations.jsonl"
    reached = len(read_lines(log))
    until(lambda: training.check() or len(read_lines(log)) > reached, "the training goes on without a node")

    # With the host's processes in sight, as a node with GPUs.
    template = manifests.pods(cluster.found)["freeride-node"]
    template = {**template, "spec": {**template["spec"], "hostPID": True, "shareProcessNamespace": False}}
    node = cluster.pod("freeride-node", template, values={"spec.nodeName": NODE})
    cluster.start(node)

    def restored():
        counters = cluster.task().get("counters", {})
        metrics = counters.get("metrics", {})
        return metrics.get("restored", 0) >= made and metrics.get("n", 0) > metrics["restored"] and metrics["restored"]

    number = until(lambda: node.check() or restored(), "the task goes on from what it saved")
    say(f"the next pod's worker has gone on with the task at step {number:.0f}")
    wrong_unless(task.get("verdict", {}).get("kind", "") == "", f"the task had ended: {task}")

    # The operator takes the node's key out of the Secret, and the kubelet brings the next version of it.
    left = {name: text for name, text in cluster.host.data["freeride-authorized"].items() if name != f"{NODE}.key"}
    manager.secrets["authorized"].publish(left)
    until(lambda: node.run("node", "freeride-ctl", "status", "--timeout", "2")[0] != 0, "the key counts no more")
    say("a key that is taken out of the Secret counts no more")
    codes = node.stop()
    wrong_unless(codes["node"] == 0, f"the node's pod did not end by itself: {codes}")
    wrong_unless(not cluster.runners(), f"side tasks are left behind: {cluster.runners()}")
    faults += without_proc(cluster)
    training.stop()
    codes = manager.stop()
    wrong_unless(codes == {"manager": 0, "web": 0}, f"the manager's pod did not end well: {codes}")
    return faults


def without_proc(cluster):
    """The mount of the host's /proc is there for a reason."""
    template = json.loads(json.dumps(manifests.pods(cluster.found)["freeride-node"]))
    template["spec"]["containers"] = [one for one in template["spec"]["containers"] if one["name"] == "node"]
    (container,) = template["spec"]["containers"]
    container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "proc"]
    pod = cluster.pod("freeride-node", template, values={"spec.nodeName": NODE})
    pod.start()
    try:
        until(lambda: "mount the host's /proc" in pod.log("node"), "a worker that sees no whole /proc says so")
    except Failure as error:
        return [f"{error}: {pod.log('node')}"]
    finally:
        pod.stop()
    return []


def image_name():
    """The one of all manifests, with its tag."""
    (image,) = {
        one["image"]
        for template in manifests.pods(manifests.objects(manifests.TRIAL)).values()
        for one in manifests.containers(template)
    }
    return image


def run(engine, build, built):
    """`built`: the image's name with the engine. Returns what was wrong."""
    print("\n== pods", flush=True)
    try:
        image = image_name()
        engine.docker("tag", built, image)
        with Cluster(engine, build, image) as cluster:
            try:
                return through(cluster)
            except (Failure, subprocess.CalledProcessError) as error:
                print("\n".join(cluster.logs()), file=sys.stderr)
                return [str(error)]
    except (Failure, EngineError, RuntimeError) as error:
        return [str(error)]
