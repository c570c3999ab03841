"""Data gets in, results get out: files under the submitter's rights and never more, variables, scratch folders, logs,
sweeps, an order among tasks, and the off switch."""

import json
import os
import signal
import subprocess

import pytest

from rig.testing import BUILD, System, find_plugin, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

ALICE, ALICES_GROUP = 1, 1  # "daemon": a real user of every host, who is nobody special
BOB = 2  # "bin"
IMPORT = "import os\nfrom freeride_plugin import *\n"
WRITER = (
    IMPORT
    + """
class Writer(SideTask):
    out = Param("/out", "where to")
    def CreateSideTask(self):
        self.n = 0
        print("begins in", os.getcwd(), os.environ.get("MODE"), flush=True)
    def RunNextStep(self):
        self.n += 1
        with open(f"{self.out}/step-{self.n}.txt", "w") as file:
            file.write(open("/in/word.txt").read() + str(self.n))
"""
)
READER = (
    IMPORT
    + """
class Reader(SideTask):
    path = Param("/in/word.txt", "what to read")
    def CreateSideTask(self):
        print("read", len(open(self.path).read()), flush=True)
    def RunNextStep(self):
        pass
"""
)
FAILING = IMPORT + "class F(SideTask):\n    def RunNextStep(self):\n        raise ValueError('boom')\n"
PATIENT = IMPORT + "class P(SideTask):\n    def RunNextStep(self):\n        pass\n"
KEEPING = (
    IMPORT
    + """
class Keeping(SideTask):
    "Fails soon after it was restored."
    def CreateSideTask(self):
        self.n = self.restored = 0
    def SaveState(self):
        return str(self.n).encode()
    def RestoreState(self, version, state):
        self.n = self.restored = int(state)
    def RunNextStep(self):
        self.n += 1
        self.metric("restored", self.restored)
        if self.restored and self.n > self.restored + 3:
            raise ValueError("boom")
"""
)


@pytest.fixture
def place(opened):
    """A folder that the operator has opened, with one of Alice's in it that nobody else may enter."""
    for name in ("in", "out"):
        (opened / "alice" / name).mkdir(parents=True)
    (opened / "alice/in/word.txt").write_text("word ")
    (opened / "secret").mkdir()
    (opened / "secret/key.txt").write_text("root's own")
    (opened / "secret").chmod(0o700)
    for path in [opened / "alice", *(opened / "alice").rglob("*")]:
        os.chown(path, ALICE, ALICES_GROUP)
    (opened / "alice").chmod(0o700)
    texts = {"writer": WRITER, "reader": READER, "failing": FAILING, "patient": PATIENT, "keeping": KEEPING}
    for name, text in texts.items():
        (opened / f"{name}.py").write_text(text)
    return opened


@pytest.fixture
def system(place):
    with System() as running:
        running.start_manager("--group", "daemon", "--default-memory-mib", "256")
        running.start_worker("cpu-0", "--data", place, "--scratch-bytes", 16 << 20)
        running.wait_workers(1)
        yield running


def ctl(system, *words, uid=None, timeout=60):
    group = ["setpriv", f"--reuid={uid}", f"--regid={uid}", f"--groups={ALICES_GROUP}"] if uid else []
    return subprocess.run(
        [*group, str(BUILD / "bin/freeride-ctl"), *map(str, words)],
        env=system.env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def load(system, place, script, name, *flags, uid=ALICE):
    done = ctl(
        system, "load", place / f"{script}.py", "--name", name, "--when-idle", "--memory", "256MiB", *flags, uid=uid
    )
    assert done.returncode == 0, done.stderr
    return name


def test_files_are_used_with_the_submitters_rights(system, place):
    files = ["--read", f"{place}/alice/in:/in", "--write", f"{place}/alice/out:/out"]
    load(system, place, "writer", "hers", *files, "--env", "MODE=fast", "--working-dir", "/out", "--steps", 5)
    assert system.wait_verdict("hers")["kind"] == "finished", json.dumps(system.info("hers")["state"]["verdict"])
    written = place / "alice/out/step-5.txt"
    assert written.read_text() == "word 5"
    assert (written.stat().st_uid, written.stat().st_gid) == (ALICE, ALICES_GROUP)
    assert "begins in /out fast" in ctl(system, "logs", "hers", uid=ALICE).stdout
    # A profile has written nothing: its steps count from 1 as well, and would have left more.
    assert len(list((place / "alice/out").iterdir())) == 5
    # Who may copy: she may, with her own rights; Bob may read neither those files nor her task's scratch folder.
    target = place / "alice/copied"
    target.mkdir()
    os.chown(target, ALICE, ALICES_GROUP)
    done = ctl(system, "cp", "hers:/out", target, uid=ALICE)
    assert done.returncode == 0 and (target / "out/step-1.txt").read_text() == "word 1", done.stderr
    refused = ctl(system, "cp", "hers:", "/var/tmp", uid=BOB)
    assert refused.returncode == 1 and "only their owner and operators may" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "uid", "said"),
    [
        (["--read", "PLACE/secret:/in"], ALICE, "you cannot read"),
        (["--read", "PLACE/alice/in:/in"], BOB, "you cannot read"),
        (["--read", "/etc/shadow:/in/word.txt"], ALICE, "you cannot read"),
        (["--read", "/var/log:/in"], ALICE, "in no folder that this worker's operator has opened"),
        (["--write", "PLACE:/in"], ALICE, "you cannot write"),
        (["--read", "PLACE/alice/in:/usr/lib"], ALICE, "is the sandbox's own"),
        (["--env", "LD_PRELOAD=/in/x.so"], ALICE, "the variable LD_PRELOAD may not be set"),
        (["--env", "CUDA_MPS_PIPE_DIRECTORY=/x"], ALICE, "CUDA_MPS_PIPE_DIRECTORY may not be set"),
        (["--working-dir", "/nowhere"], ALICE, "its working folder is not there"),
    ],
)
def test_what_is_not_hers_is_refused_with_a_sentence(system, place, flags, uid, said):
    flags = [flag.replace("PLACE", str(place)) for flag in flags]
    done = ctl(
        system, "load", place / "patient.py", "--name", "no", "--when-idle", "--memory", "256MiB", *flags, uid=uid
    )
    if done.returncode != 0:
        assert said in done.stderr
        return
    verdict = system.wait_verdict("no")
    assert verdict["kind"] == "rejected" and said in verdict["reason"], verdict


def test_a_link_that_is_swapped_leads_nowhere_else(system, place):
    """What the client has looked at is not what is there when the worker opens it: the worker looks as her, below the
    folder that is open, whatever links say."""
    link = place / "alice/link"
    for target in (place / "secret", "/etc", "/root"):
        link.unlink(missing_ok=True)
        link.symlink_to(place / "alice/in")  # good when ctl looks
        name = f"swap-{str(target).strip('/').replace('/', '-')[-20:]}"
        os.kill(system.processes["worker-cpu-0"].pid, signal.SIGSTOP)
        try:
            load(system, place, "reader", name, "--read", f"{link}:/in")
            link.unlink()
            link.symlink_to(target)
        finally:
            os.kill(system.processes["worker-cpu-0"].pid, signal.SIGCONT)
        verdict = system.wait_verdict(name)
        assert verdict["kind"] == "rejected" and "the task could not" in verdict["reason"], verdict


GRABBER = (
    IMPORT
    + """
class Grabber(SideTask):
    def CreateSideTask(self):
        print("sees", sorted(n for n in os.listdir(".") if n.isdigit()), flush=True)
    def RunNextStep(self):
        pass
"""
)
PLANTER = (
    IMPORT
    + """
class Planter(SideTask):
    def RunNextStep(self):
        with open("/out/program", "w") as file:
            file.write("x")
        refused = 0
        try:
            os.chmod("/out/program", 0o6755)
        except PermissionError:
            refused += 1
        try:
            os.open("/out/other", os.O_WRONLY | os.O_CREAT, 0o4755)
        except PermissionError:
            refused += 1
        os.chmod("/out/program", 0o755)
        print("refused", refused, flush=True)
        # For who copies it: a link where the copy will lie, then a file of that name.
        os.makedirs("/out/results", exist_ok=True)
        os.symlink("/var/tmp/freeride-never", "/out/results/rc")
"""
)


def test_a_working_folder_is_one_of_the_sandbox(system, place):
    """Whoever makes a sandbox has descriptors of the host's folders; no path may lead through them."""
    (place / "grabber.py").write_text(GRABBER)
    for n in (3, 4, 5, 7, 9):
        load(system, place, "grabber", f"g{n}", "--working-dir", f"/proc/self/fd/{n}", "--steps", 1, "--no-profile")
        verdict = system.wait_verdict(f"g{n}")
        seen = ctl(system, "logs", f"g{n}").stdout
        assert verdict["kind"] == "rejected" or "sees []" in seen, (verdict, seen)
        if verdict["kind"] == "rejected":
            assert "its working folder is not there" in verdict["reason"]


def test_what_a_task_leaves_gives_nobody_its_submitters_rights(system, place):
    (place / "planter.py").write_text(PLANTER)
    load(system, place, "planter", "p", "--write", f"{place}/alice/out:/out", "--steps", 1, "--no-profile")
    assert system.wait_verdict("p")["kind"] == "finished", system.info("p")["state"]["verdict"]
    assert "refused 2" in ctl(system, "logs", "p", uid=ALICE).stdout
    assert (place / "alice/out/program").stat().st_mode & 0o7777 == 0o755
    # A copy follows no link: neither one that comes with it, nor one that has come before, nor one on the way.
    to = place / "alice/copies"
    to.mkdir()
    done = ctl(system, "cp", "p:/out", to)
    assert done.returncode == 0 and "1 left out" in done.stdout, done.stdout + done.stderr
    assert sorted(path.name for path in (to / "out").iterdir()) == ["program", "results"]
    victim = place / "victim"
    victim.write_text("mine")
    (to / "out/program").unlink()
    (to / "out/program").symlink_to(victim)
    assert ctl(system, "cp", "p:/out", to).returncode == 0
    assert victim.read_text() == "mine" and not (to / "out/program").is_symlink()
    (place / "alice/out/way").symlink_to(place / "secret")
    refused = ctl(system, "cp", "p:/out/way/key.txt", to)
    assert refused.returncode != 0 and "over a link" in refused.stderr


def test_one_users_files_and_failures_are_not_anothers(system, place):
    # The same content, but a profile of hers fails for a reason that is hers alone.
    load(system, place, "patient", "his", "--steps", 3, uid=BOB)
    load(system, place, "patient", "hers", "--working-dir", "/nowhere")
    assert system.wait_verdict("hers")["kind"] == "rejected"
    assert system.wait_verdict("his")["kind"] == "finished", system.info("his")["state"]["verdict"]
    # Other code in her task's place could read what the task has written.
    load(system, place, "writer", "kept", "--read", f"{place}/alice/in:/in", "--param", "out=/scratch")
    system.wait_steps("kept")
    refused = ctl(system, "load", place / "patient.py", "--replace", "kept", "--yes", uid=BOB)
    assert refused.returncode != 0 and "only their owner and operators may" in refused.stderr


def test_what_is_written_is_there_though_task_and_worker_are_killed(system, place):
    files = ["--read", f"{place}/alice/in:/in", "--write", f"{place}/alice/out:/out"]
    load(system, place, "writer", "killed", *files)
    until(lambda: len(list((place / "alice/out").iterdir())) >= 20, "twenty files")
    worker = system.processes["worker-cpu-0"]
    worker.kill()
    worker.wait()
    until(lambda: not system.runners(), "its processes are gone")
    before = {path.name: path.read_text() for path in (place / "alice/out").iterdir()}
    numbers = sorted(int(name[5:-4]) for name in before)
    # Each that was closed is whole; only the last may have been under way.
    assert numbers == list(range(1, len(numbers) + 1))
    assert all(before[f"step-{n}.txt"] == f"word {n}" for n in numbers[:-1])
    # The manager restarts as well: what the task may see comes back with it.
    system.processes["manager"].kill()
    system.processes["manager"].wait()
    system.start_manager("--group", "daemon", "--default-memory-mib", "256")
    system.start_worker("cpu-0", "--data", place, "--scratch-bytes", 16 << 20)
    kept = system.info("killed")["load"]
    assert [file["source"] for file in kept["files"]] == [f"{place}/alice/in", f"{place}/alice/out"]
    assert kept["uid"] == ALICE
    system.wait_steps("killed")


def test_scratch_is_one_tasks_alone_and_can_be_copied(system, place):
    load(system, place, "writer", "same", "--read", f"{place}/alice/in:/in", "--param", "out=/scratch", "--steps", 3)
    assert system.wait_verdict("same")["kind"] == "finished"
    to = place / "results"
    to.mkdir(mode=0o777)
    assert ctl(system, "cp", "same:step-2.txt", to).returncode == 0
    assert (to / "step-2.txt").read_text() == "word 2"
    assert ctl(system, "cp", "same:", to).returncode == 0
    assert sorted(path.name for path in (to / "same").iterdir()) == [f"step-{n}.txt" for n in (1, 2, 3)]
    assert ctl(system, "cp", "same:../log", to).returncode == 2
    assert ctl(system, "cp", "same:nothing", to).returncode == 4
    assert "scratch" in system.info("same")["sandbox"] and "days after the end" in system.info("same")["sandbox"]
    # Another of the name has nothing of it, from a live one it can be had as well.
    load(system, place, "patient", "same")
    system.wait_steps("same")
    assert ctl(system, "cp", "same:step-2.txt", to).returncode == 4
    assert "begins in" not in ctl(system, "logs", "same").stdout
    assert ctl(system, "logs", "same", "--previous").returncode == 4


def test_sweeps_run_so_many_at_once_and_are_found_by_label(system, place):
    both = ctl(system, "load", find_plugin("counter.so"), "--param", "step_us=1", "--sweep", "step_us=1,2")
    assert both.returncode == 2 and "both swept and given" in both.stderr
    # All or none: the second one's name is taken.
    load(system, place, "patient", "n-2", uid=None)
    refused = ctl(system, "load", find_plugin("counter.so"), "--name", "n", "--sweep", "step_us=1,2")
    assert refused.returncode == 1 and "stopped again" in refused.stderr
    until(lambda: system.info("n-1")["state"]["verdict"]["kind"] == "stopped", "the first is stopped again")
    assert ctl(system, "stop", "n-2").returncode == 0
    done = ctl(
        system, "load", find_plugin("counter.so"), "--name", "c", "--when-idle", "--memory", "64MiB", "--label", "who=me",
        "--sweep", "step_us=100,200,300", "--parallel", 1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = ["c-1", "c-2", "c-3"]

    def there():
        return [name for name in names if system.task(name).get("worker")]

    system.wait_steps("c-1")
    assert there() == ["c-1"]
    assert system.task("c-2")["why"] in ("parallel", "profiling")
    listed = json.loads(ctl(system, "--format", "json", "tasks", "-l", "sweep=step_us", "-l", "step_us=200").stdout)
    assert [task["state"]["task"] for task in listed["tasks"]] == ["c-2"]
    assert ctl(system, "stop", "c-1").returncode == 0
    system.wait_steps("c-2")
    assert there()[-1] == "c-2" and "c-3" not in there()
    assert ctl(system, "stop", "-l", "who=me").returncode == 0
    assert ctl(system, "wait", "c-1", "c-2", "c-3").returncode == 0
    until(lambda: ctl(system, "rm", "-l", "who=me").returncode in (0, 4), "they can be removed")
    assert ctl(system, "stop", "-l", "who=me").returncode == 4


def test_an_order_among_tasks_restarts_and_time(system, place):
    load(system, place, "patient", "first", "--steps", 50, uid=None)
    load(system, place, "patient", "second", "--dependency", "afterok:first", "--steps", 2, uid=None)
    assert system.wait_verdict("second")["kind"] == "finished"
    assert system.info("first")["state"]["verdict"]["kind"] == "finished"
    assert ctl(system, "load", place / "patient.py", "--dependency", "afterok:none").returncode == 4
    load(system, place, "failing", "fails", "--restart", "on-failure:1", uid=None)
    assert system.wait_verdict("fails")["kind"] in ("failed", "rejected")
    refused = ctl(system, "load", place / "patient.py", "--dependency", "afterok:fails")
    assert refused.returncode == 5 and "has not finished" in refused.stderr
    load(system, place, "patient", "long", "--time", "2s", uid=None)
    verdict = system.wait_verdict("long")
    assert verdict["kind"] == "stopped" and "its time was over" in verdict["reason"]


def test_a_task_that_failed_is_started_again_from_its_last_saved_state(system, place):
    load(system, place, "keeping", "keeps", "--restart", "on-failure:2", uid=None)
    system.wait_steps("keeps", 5)
    assert ctl(system, "drain", "cpu-0").returncode == 0  # saves
    assert ctl(system, "uncordon", "cpu-0").returncode == 0
    # Whoever was started from zero would not fail.
    assert system.wait_verdict("keeps")["kind"] == "failed"
    info = system.info("keeps")
    assert info["failures"] == 2 and info["state"]["counters"]["metrics"]["restored"] >= 5, info


def test_another_plugin_needs_a_yes(system, place):
    load(system, place, "patient", "moved", uid=None)
    system.wait_steps("moved")
    asked = ctl(system, "load", place / "failing.py", "--replace", "moved")
    assert asked.returncode == 2 and "--yes" in asked.stderr
    assert system.info("moved")["load"]["plugin"] == "patient.py"


def test_a_drained_device_is_empty_and_stays_so(system, place):
    load(system, place, "patient", "there", uid=None)
    system.wait_steps("there")
    assert system.runners()
    done = ctl(system, "drain", "cpu-0")
    assert done.returncode == 0 and ": empty" in done.stdout, done.stderr
    assert not system.runners(), "it was said to be empty"
    assert [one["drained"] for one in system.ok("workers")["workers"]] == [True]
    until(lambda: system.task("there").get("why") == "drained", "it waits for another device")
    planned = ctl(system, "load", place / "patient.py", "--when-idle", "--memory", "256MiB", "--dry-run")
    assert planned.returncode == 5 and "drained" in planned.stdout, planned.stdout
    # Over a restart of the manager, in order or not, and of the worker.
    for killed in ("manager", "worker-cpu-0"):
        system.processes[killed].kill()
        system.processes[killed].wait()
    system.start_manager("--group", "daemon", "--default-memory-mib", "256")
    system.start_worker("cpu-0", "--data", place)
    system.wait_workers(1)
    until(lambda: system.task("there").get("why") == "drained", "it is still drained")
    assert not system.runners()
    assert ctl(system, "drain", "cpu-0").returncode == 0
    assert ctl(system, "uncordon", "cpu-0").returncode == 0
    system.wait_steps("there")
    assert [one["drained"] for one in system.ok("workers")["workers"]] == [False]
    assert ctl(system, "uncordon", "cpu-0").returncode == 4
    done = ctl(system, "drain", "all")
    assert done.returncode == 0 and ": empty" in done.stdout, done.stdout + done.stderr
    done = ctl(system, "uncordon", "all")
    assert (done.returncode, done.stdout) == (0, "everything is given back\n")
    assert ctl(system, "uncordon", "all").returncode == 4
    system.wait_steps("there")
    assert ctl(system, "drain", "nothing-of-that-name").returncode == 4
    # Whoever cannot look proves nothing.
    worker = system.processes["worker-cpu-0"]
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        done = ctl(system, "drain", "cpu-0", "--for", 2)
        assert done.returncode == 1 and "it is not known that" in done.stderr, done.stdout
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    assert ctl(system, "drain", "cpu-0").returncode == 0
    assert not system.runners()
