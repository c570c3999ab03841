"""Slurm's own daemons on two hosts: munged and slurmctld, a slurmd on each. Each host is a PID namespace, too, so what
looks for processes there finds the host's own, and has users of its own. Root only."""

import contextlib
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time

from rig.hosts import HOSTNAME, Hosts
from rig.processes import Failure, until
from rig.system import read_lines
from rig.testing import find_plugin
from rig.tree import PYTHON, SOURCE

SLURM = SOURCE / "containers/slurm"
CONF = """
ClusterName=frtest
SlurmctldHost={hostname}({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock,cred_expire={expire}
CredType=cred/munge
SlurmctldPort=6817
SlurmdPort=6818
StateSaveLocation={root}/ctld
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/ctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
ProctrackType=proctrack/{track}
TaskPlugin=task/{task}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core{count}
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
PlugStackConfig={root}/plugstack.conf
Prolog={root}/prolog
Epilog={root}/epilog
PrologFlags=Alloc
PrologEpilogTimeout=180
KillWait=5
InactiveLimit=0
MessageTimeout=60
SlurmdTimeout={silence}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldDebug=verbose
SlurmdDebug=verbose
ReturnToService=1
JobRequeue=1
SchedulerParameters=bf_interval=2,batch_sched_delay=0,sched_interval=3
SlurmdParameters=config_overrides
NodeName=a NodeHostname={hostname} NodeAddr={a} CPUs=2 RealMemory=1000
NodeName=b NodeHostname={hostname} NodeAddr={b} CPUs=2 RealMemory=1000
PartitionName=main Nodes=a,b Default=YES OverSubscribe=EXCLUSIVE State=UP MaxTime=INFINITE PriorityTier=1
PartitionName=urgent Nodes=a,b OverSubscribe=EXCLUSIVE State=UP MaxTime=INFINITE PriorityTier=2
"""
# Ordinary users of both hosts, and what groups they are in.
USERS = {"alice": 70001, "bob": 70002}
GROUPS = {"freeride": (70100, "alice,bob"), "vision": (70101, "alice")}
# As a user writes it: nothing of FreeRide's. Only that a stage's device is cpu-0 or cpu-1 is the test's: these hosts
# share one machine's processors.
RANK = """#!/bin/sh
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID MASTER_ADDR={head} MASTER_PORT=$1
export GLOO_SOCKET_IFNAME=data FREERIDE_DEVICE=cpu-$SLURM_NODEID; shift
exec taskset -c $((SLURM_NODEID % {cores})) {python} {script} --stages $SLURM_NTASKS --rank $RANK "$@"
"""


def processes(words, uid=0):
    """Of that user, on whichever host."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"\nUid:\t{uid}\t" not in (folder / "status").read_text():
                continue
            if words in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def children(pid):
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Cluster(Hosts):
    """`confined`: Slurm puts jobs into control groups of its own, version 1, and their memory is counted."""

    # A job that is requeued may not begin before its credential has expired. Slurm's default is two minutes.
    EXPIRE_S = 20

    def __init__(self, wires, confined=False):
        super().__init__(wires)
        self.inner = {}  # host: the number of its first process, as seen from here
        self.conf = self.root / "slurm.conf"
        self._groups = []
        for folder in ("run", "ctld", "spool-a", "spool-b"):
            (self.root / folder).mkdir()
        self.munge_key = self.root / "munge.key"
        self.munge_key.write_bytes(os.urandom(128))
        self.munge_key.chmod(0o600)
        self._confined = confined
        self.write_conf()
        # A name is no proof: of alice of host a this one is.
        (self.root / "freeride.toml").write_text('[accounts]\nvision = ["alice@a"]\n')
        self.env["FREERIDE_CONFIG"] = str(self.root / "freeride.toml")
        (self.root / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nConstrainCores=yes\nConstrainRAMSpace=yes\n"
        )
        self.rank = self.write("rank.sh", RANK, head=wires.address("data", "a"), cores=os.cpu_count(), python=PYTHON,
                               script=SOURCE / "hooks/examples/train_gpt.py")  # fmt: skip
        for name in ("prolog", "epilog"):
            self.write(name, "#!/bin/sh\nFREERIDE_SLURM_ENV={root}/slurm-$SLURMD_NODENAME.env exec {script}\n",
                       root=self.root, script=SLURM / name)  # fmt: skip
        self._make_users()
        self.plugstack()
        self.ports = iter(range(29000, 29500))

    def _make_users(self):
        """The machine's users and groups, and ours."""
        lines = [f"{name}:x:{uid}:{uid}::{self.root}/home-{name}:/bin/sh\n" for name, uid in USERS.items()]
        (self.root / "passwd").write_text(pathlib.Path("/etc/passwd").read_text() + "".join(lines))
        groups = [f"{name}:x:{uid}:\n" for name, uid in USERS.items()]
        groups += [f"{name}:x:{gid}:{members}\n" for name, (gid, members) in GROUPS.items()]
        (self.root / "group").write_text(pathlib.Path("/etc/group").read_text() + "".join(groups))
        for name, uid in USERS.items():
            (self.root / f"home-{name}").mkdir()
            os.chown(self.root / f"home-{name}", uid, uid)

    def write(self, name, text, **words):
        path = self.root / name
        path.write_text(text.format(**words))
        path.chmod(0o755)
        return path

    def write_conf(self, silence=300):
        """`silence`: a node that says nothing for so many seconds is down."""
        hosts = {host: self.wires.address("ctl", host) for host in self.wires.names}
        track, task, count = ("cgroup", "cgroup", "_Memory") if self._confined else ("linuxproc", "none", "")
        text = CONF.format(hostname=HOSTNAME, root=self.root, head=hosts["a"], track=track, task=task, count=count,
                           expire=self.EXPIRE_S, silence=silence, **hosts)  # fmt: skip
        self.conf.write_text(text)

    def plugstack(self, **changed):
        """What the plugin is told; `changed`: other settings than the build's."""
        settings = {
            "python": self.tree.hooks,
            "start": SOURCE / "hooks/python/freeride/_start",
            "library": self.tree.hook_library(),
            "run_dir": self.root / "run",
            **changed,
        }
        words = " ".join(f"{name}={value}" for name, value in settings.items())
        plugin = self.tree.programs.parent / "lib/freeride-spank.so"
        (self.root / "plugstack.conf").write_text(f"optional {plugin} {words}\n")

    # ---- hosts
    def boot(self):
        for host in self.wires.names:
            groups = self._make_groups(host)
            self.boot_host(host)
            enough = f"PATH={self.tree.programs}:$PATH\nFREERIDE_RUN_DIR={self.root}/run\n"
            enough += f'FREERIDE_CGROUPS="{" ".join(map(str, groups))}"\nFREERIDE_EMPTY_S=60\n'
            (self.root / f"slurm-{host}.env").write_text(enough + "FREERIDE_NODE_STOP='pkill -x freeride-node'\n")
            # As systemd does it: outside of Prolog's own processes.
            folders = [f"{name}={folder}" for name, folder in self.folders(host).items()]
            start = shlex.join(["env", *folders, "setsid", *map(str, self.node_words(host))])
            log = self.root / f"prologs-node-{host}.log"
            script = self.write(
                f"start-{host}",
                "#!/bin/sh\n[ -e {root}/may-start ] || exit 1\n{start} >>{log} 2>&1 </dev/null &\n",
                start=start,
                log=log,
                root=self.root,
            )
            self.set_node(host, FREERIDE_NODE_START=script)

    def set_node(self, host, **settings):
        """For the scripts of that node, from its next job on."""
        with open(self.root / f"slurm-{host}.env", "a", encoding="utf-8") as file:
            file.write("".join(f"{name}={value}\n" for name, value in settings.items()))

    def boot_host(self, host):
        script = (
            'mount --bind "$1" /dev/shm && mount --bind "$2" "$3" && hostname "$4" && '
            'mount --bind "$5" /etc/passwd && mount --bind "$6" /etc/group && '
            "while :; do sleep 1000 & wait $!; done"
        )
        folders = [self.root / host / "shm", self.root / host / "r", self.root / "run", HOSTNAME]
        folders += [self.root / "passwd", self.root / "group"]
        net = f"--net=/run/netns/{self.wires.names[host]}"
        flags = ["-m", "-u", "-i", "-p", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        first = self.start(f"host-{host}", ["nsenter", net, "unshare", *flags, "sh", "-c", script, "sh", *folders])
        self.inner[host] = until(lambda: next(iter(children(first.pid)), None), f"host {host}")
        mounts = pathlib.Path(f"/proc/{self.inner[host]}/mountinfo")
        until(lambda: " /etc/group " in mounts.read_text(), f"mounts of host {host}")

    def cut_power(self, host):
        """All that ran there is gone, and what was in memory."""
        os.kill(self.inner.pop(host), signal.SIGKILL)
        for name in (f"host-{host}", f"slurmd-{host}", f"node-{host}"):
            self.processes.pop(name).wait(60)
        for folder in ("shm", "r"):
            for left in (self.root / host / folder).iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def _make_groups(self, host):
        """Control groups of its own, version 1; elsewhere there are none, and rlimits hold."""
        made = []
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            base = pathlib.Path(f"/sys/fs/cgroup/{names}{path}")
            if names not in ("cpu", "memory", "cpuset", "pids", "freezer") or not base.is_dir():
                continue
            group = base / f"frhost-{os.getpid()}-{host}"
            with contextlib.suppress(OSError):
                group.mkdir()
                for name in ("cpuset.cpus", "cpuset.mems") if names == "cpuset" else ():
                    (group / name).write_text((base / name).read_text())
                made.append(group)
        self._groups += made
        return made

    def groups(self, host):
        return [group for group in self._groups if group.name.endswith(f"-{host}")]

    def enter(self, host, words):
        join = "".join(f"echo $$ >{group}/cgroup.procs && " for group in self.groups(host)) + 'exec "$@"'
        into = ["nsenter", "-t", self.inner[host], "-m", "-u", "-i", "-n", "-p", "--"]
        return ["sh", "-c", join, "sh", *map(str, into), *map(str, words)]

    def on(self, host, *words, check=True):
        """What a command there says; with a user's environment, which knows nothing of FreeRide."""
        words = list(map(str, self.enter(host, words)))
        done = subprocess.run(words, env=self.users(), capture_output=True, text=True, timeout=180, check=False)
        if check and done.returncode:
            raise Failure(f"{' '.join(words[-6:])}: exit {done.returncode}: {done.stderr.strip() or done.stdout}")
        return done

    def as_user(self, user, words):
        """With that user's groups; where this runs on a host."""
        uid = USERS[user]
        home = self.root / f"home-{user}"
        own = [f"HOME={home}", f"USER={user}", f"LOGNAME={user}"]
        return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--init-groups", "env", f"--chdir={home}", *own, *words]

    def users(self):
        own = {name: value for name, value in self.env.items() if not name.startswith(("FREERIDE_", "PYTHONPATH"))}
        return {**own, "SLURM_CONF": str(self.conf)}

    def end(self, name, seconds=20, number=signal.SIGTERM):
        self.signal(name, number)
        self.finish(name, seconds)

    def signal(self, name, number):
        """To all of it: what entered a namespace waits for the program and hands nothing on."""
        os.killpg(self.processes[name].pid, number)

    def end_all(self, seconds=20):
        self.inner and self._end_hosts()
        super().end_all(seconds)
        for group in self._groups:
            for one in [*group.glob("freeride-*"), group]:
                with contextlib.suppress(OSError, Failure):
                    until(lambda one=one: not (one / "cgroup.procs").read_text(), f"{one} is empty", 5)
                    one.rmdir()

        for name in ("a", "b") if self._confined else ():
            for top in pathlib.Path("/sys/fs/cgroup").glob(f"*/slurm_{name}"):
                for folder, _, _ in os.walk(top, topdown=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(folder)

    def _end_hosts(self):
        """A namespace's processes end with its first one."""
        for pid in self.inner.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.inner = {}

    # ---- Slurm
    def start_slurm(self):
        root = self.root
        files = [f"--{name}-file={root}/munge.{name}" for name in ("pid", "log", "seed")]
        socket = root / "munge.sock"
        self.start(
            "munged",
            ["munged", "--foreground", "--force", f"--socket={socket}", f"--key-file={self.munge_key}", *files],
        )
        until(socket.exists, "munged listens")
        self.start_ctld()
        for host in self.wires.names:
            self.start_slurmd(host)
        self.wait(
            lambda: self.on("a", "sinfo", "-h", "-o", "%T %D", check=False).stdout.strip() == "idle 2", "two idle nodes"
        )

    def start_ctld(self):
        self.start("slurmctld", self.enter("a", ["slurmctld", "-D", "-f", self.conf]), self._slurm())

    def start_slurmd(self, host):
        self.start(f"slurmd-{host}", self.enter(host, ["slurmd", "-D", "-N", host, "-f", self.conf]), self._slurm())

    def _slurm(self):
        return {"SLURM_CONF": str(self.conf), "FREERIDE_RUN_DIR": "", "PYTHONPATH": ""}

    def user_words(self, words):
        unset = [word for name in self.env if name.startswith(("FREERIDE_", "PYTHONPATH")) for word in ("-u", name)]
        return ["env", *unset, f"SLURM_CONF={self.conf}", *words]

    def srun(self, name, *words):
        return self.start(name, self.enter("a", self.user_words(["srun", *words])))

    def train(self, name, *flags, iterations=150, env=()):
        """The example's small GPT, a stage on each node, as one job."""
        words = ["srun", "-N2", "--ntasks-per-node=1", *flags, *self.ranks(name, iterations)]
        return self.start(name, self.enter("a", self.user_words([*env, *words])))

    def ranks(self, name, iterations, folder=None):
        log = self.trainings[name] = (folder or self.root) / f"{name}.jsonl"
        sizes = ["--dim", 64, "--layers", 2, "--seq", 64, "--micro-batches", 4, "--iterations", iterations]
        return [self.rank, next(self.ports), *sizes, "--log-json", log]

    def submit(self, name, *flags, user=None, before=""):
        """A training as a batch job, until it is cancelled; returns its number, when both ranks are there. `user`: as
        that one; `before`: what its script does first."""
        folder = self.root / f"home-{user}" if user else self.root
        words = shlex.join(map(str, self.ranks(name, 1_000_000, folder)))
        script = self.write(f"{name}.sh", "#!/bin/sh\n{before}exec srun {words}\n", words=words, before=before)
        words = ["sbatch", "-N2", "--ntasks-per-node=1", "--parsable", "--open-mode=append"]
        words += ["-o", folder / f"{name}.txt", *flags, script]
        words = self.user_words(words)
        job = int(self.on("a", *(self.as_user(user, words) if user else words)).stdout)
        self.wait_trainers(job, user)
        return job

    def own_job(self, *command, side_tasks, memory="900M"):
        """A job of alice's with a manager, nodes and side tasks of its own."""
        env = [
            f"PATH={self.tree.programs}:{os.environ['PATH']}",
            f"TMPDIR={self.root}/home-alice",
            f"SIDE_TASKS={shlex.join(map(str, side_tasks))}",
            f"NODE_FLAGS=--device cpu-$SLURM_NODEID --cores $((SLURM_NODEID % {os.cpu_count()})) -- --memory-bytes 300000000",
        ]
        words = [
            "sbatch",
            "--parsable",
            f"--mem={memory}",
            "-o",
            "own-%j.txt",
            SLURM / "own-side-tasks.sbatch",
            *command,
        ]
        return int(self.on("a", *self.as_user("alice", self.user_words(["env", *env, *words]))).stdout)

    def own_text(self, job):
        """What the job has said."""
        return (self.root / f"home-alice/own-{job}.txt").read_text()

    def cancel_batch(self, job, user=None):
        """Returns what Slurm says became of it."""
        words = self.user_words(["scancel", job])
        self.on("a", *(self.as_user(user, words) if user else words))
        self.wait_off(job)
        return self.job_state(job)["JobState"]

    def job_state(self, job):
        """As scontrol tells it."""
        text = self.on("a", *self.user_words(["scontrol", "show", "job", "-o", job])).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def wait_ended(self, job):
        """Until a job is over; of root's daemons nothing is asked."""
        until(
            lambda: self.job_state(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), f"the end of job {job}"
        )

    def wait_saved(self, job):
        """Until slurmctld has written down what it knows now, which it does some seconds later. A job that a killed one
        has not written down is nobody's to the next, which ends it."""
        mark = f"saved-{time.monotonic_ns()}"
        self.on("a", *self.user_words(["scontrol", "update", f"jobid={job}", f"comment={mark}"]))
        self.wait(lambda: mark.encode() in (self.root / "ctld/job_state").read_bytes(), "slurmctld has saved the job")

    def wait_off(self, job):
        """Until a job has left its nodes, for whatever reason, and these have no trainer any more."""
        self.wait(lambda: self.job_state(job)["JobState"] not in ("RUNNING", "COMPLETING"), f"the end of job {job}")
        self.wait(lambda: not any(self.worker(host)["state"]["job"] for host in self.wires.names), "no trainers")

    def left(self, host):
        """What there is of side tasks on a host, looked for by other ways than Epilog's."""
        runners = self.on(host, "pgrep", "-f", "freeride-runner", check=False).stdout.split()
        groups = [path for group in self.groups(host) for path in group.glob("freeride-*")]
        return [*runners, *groups, *(self.root / host / "shm").iterdir()]

    def jobs(self):
        """Those that run; the others are ending, or wait."""
        return [int(word) for word in self.on("a", "squeue", "-h", "-t", "running", "-o", "%A").stdout.split()]

    def job(self):
        """The number of the one that runs."""
        return self.wait(lambda: next(iter(self.jobs()), None), "a job")

    def counter(self, name, stage, *flags):
        """A side task."""
        self.load(find_plugin("counter.so"), name, "--stage", stage, *flags, params={"step_us": 300, "sleep": 1})

    def begin(self, name):
        """A training until it is cancelled; returns its job's number."""
        self.wait_idle()
        self.train(name, "--freeride", iterations=1_000_000)
        job = self.job()
        self.wait_trainers(job)
        return job

    def cancel(self, name, job):
        """Returns the exit code that training's user sees."""
        self.on("a", *self.user_words(["scancel", job]))
        return self.processes.pop(name).wait(120)

    def load_words(self, plugin, name, *flags):
        return [self.tree.program("freeride-ctl"), "load", plugin, "--name", name, *flags]

    def keeper(self, name, stage, *flags):
        """A side task that counts, and saves how far it has come."""
        self.load(find_plugin("keeper.so"), name, "--stage", stage, *flags)

    def metrics(self, name):
        return self.task(name)["counters"]["metrics"]

    def wait_trainers(self, job, user=None):
        """Until each node's worker has a rank of this job."""
        name = f"{USERS[user]}/slurm-{job}" if user else f"slurm-{job}"

        def there():
            return all(self.worker(host).get("state", {}).get("job") == name for host in self.wires.names)

        self.wait(there, f"trainers of slurm-{job} on both nodes")

    def clear(self):
        """Ends all jobs and side tasks, and takes the nodes back."""
        jobs = self.on("a", "squeue", "-h", "-o", "%A", check=False).stdout.split()
        self.on("a", *self.user_words(["scancel", *jobs]), check=False)
        for host in self.wires.names:
            self.on("a", "scontrol", "update", f"nodename={host}", "state=resume", check=False)
        for task in self.ctl("tasks").json.get("tasks", []) if "manager" in self.processes else ():
            self.ctl("stop", task["state"]["task"])
        for name in [name for name, process in self.processes.items() if process.poll() is not None]:
            self.processes.pop(name)

    def wait_idle(self):
        until(lambda: self.states() == {"a": "idle", "b": "idle"}, "both nodes are idle")

    def states(self):
        lines = self.on("a", "sinfo", "-h", "-N", "-o", "%N %T", check=False).stdout.split("\n")
        return dict(line.split() for line in lines if line)

    def reason(self, host):
        return self.on("a", "sinfo", "-h", "-N", "-p", "main", "-n", host, "-o", "%E").stdout.strip()

    def losses(self, name="training"):
        return [line["loss"] for line in read_lines(self.trainings[name])]
