"""Users who are not root beside root's FreeRide: their trainings are hooked, and they are told what they may not."""

import json
import os
import pathlib
import subprocess
import time

import pytest

from rig.processes import flags
from rig.testing import BUILD, SOURCE, System, find_plugin, until
from rig.tree import PYTHON

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
SMALL = {"dim": 64, "seq": 64, "micro_batches": 4}


@pytest.fixture
def system():
    with System() as running:
        yield running


def start_her_training(system, name, iterations, env=None, **options):
    """As System.start_training(), but nobody's."""
    folder = system.root / name
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    system.trainings[name] = folder / "iterations.jsonl"
    words = flags(
        stages=2, layers=2, log_json=system.trainings[name], iterations=iterations, **{"hook": "on", **SMALL, **options}
    )
    return system.start(name, [*AS_NOBODY, PYTHON, SOURCE / "hooks/examples/train_gpt.py", *words], env)


def ctl(system, *words, before=(), env=None):
    return subprocess.run(
        [*before, str(BUILD / "bin/freeride-ctl"), *words],
        env={**system.env, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_her_training_is_harvested_and_its_losses_are_the_same(system):
    system.start_manager("--baseline-pct", "0", "--group", "daemon")
    for stage in range(2):
        system.start_worker(f"cpu-{stage}")
    system.load(find_plugin("pagerank.so"), "pagerank", "--stage", 1, params={"scale": 12})
    training = start_her_training(system, "harvested", 400)
    system.wait_steps("pagerank")
    assert training.poll() is None, "the training was over before anything was harvested"
    jobs = [job["job"] for job in system.ok("status")["jobs"]]
    assert jobs == [f"{NOBODY}/gpt"]
    # What people are shown is what is understood, and so is the name alone.
    assert "nobody/gpt" in ctl(system, "status").stdout
    for name in ("nobody/gpt", f"{NOBODY}/gpt", "gpt"):
        assert [job["job"] for job in system.ok("report", "--job", name)["jobs"]] == jobs
    # She may not command, and is told so at once: which socket, whose it is, which group.
    began = time.monotonic()
    refused = ctl(system, "status", before=AS_NOBODY)
    assert time.monotonic() - began < 60
    assert refused.returncode == 1 and refused.stdout == ""
    assert f"nobody may not use {system.run_dir}/commands.sock: it is for root and the group daemon" in refused.stderr
    assert "usermod -aG daemon nobody" in refused.stderr and refused.stderr.count("\n") == 1
    assert training.wait(300) == 0
    assert "freeride:" not in system.log("harvested")
    alone = start_her_training(system, "alone", 400, hook="off")
    assert alone.wait(300) == 0
    harvested, without = ([i["loss"] for i in system.iterations(name)] for name in ("harvested", "alone"))
    assert len(without) == 400 and harvested == without


def test_two_jobs_of_one_script_beside_each_other_are_two(system):
    system.start_manager()
    for stage in range(2):
        system.start_worker(f"cpu-{stage}")
    unnamed = {"FREERIDE_JOB": ""}
    for name in ("one", "other"):
        system.start_training(stages=2, name=name, env=unnamed)
    start_her_training(system, "hers", 100000, env=unnamed)

    def ranks():
        """Of each job: the workers that have one."""
        found = {}
        for worker in system.ok("workers")["workers"]:
            for rank in worker["ranks"]:
                found.setdefault(rank["job"], set()).add((rank["rank"], worker["state"]["device"]))
        return found

    system.wait(
        lambda: len(ranks()) == 3 and all(len(jobs) == 2 for jobs in ranks().values()), "three jobs of two ranks"
    )
    assert all(places == {(0, "cpu-0"), (1, "cpu-1")} for places in ranks().values())
    names = sorted(ranks())
    assert sum(name.startswith("train_gpt.py-") for name in names) == 2
    assert sum(name.startswith(f"{NOBODY}/train_gpt.py-") for name in names) == 1
    # A side task is for the one that it names.
    system.load(find_plugin("pagerank.so"), "its", "--job", names[-1], params={"scale": 10})
    until(lambda: system.task("its").get("worker"), "its place")
    assert system.task("its")["job"] == names[-1]


def test_a_job_is_drained_by_its_name_and_no_other_users_of_that_name(system):
    """Two trainings of one name, root's and hers, with a side task each."""
    system.listen("bubble.end")
    system.start_manager("--baseline-pct", "0", "--group", "daemon")
    for device in range(5):
        system.start_worker(f"cpu-{device}")
    system.wait_workers(5)
    host = system.ok("workers")["workers"][0]["state"]["worker"].rsplit(":", 1)[0]
    hers = f"{NOBODY}/gpt"

    def start_task(name, job, stage):
        flags = ("--job", job, "--stage", stage, "--no-profile")
        system.load(find_plugin("counter.so"), name, *flags, params={"step_us": 300, "sleep": 1})
        system.wait_steps(name, 20)

    def drain(name, *devices):
        """Returns when the job was empty."""
        done = ctl(system, "drain", name)
        assert done.returncode == 0, done
        assert sorted(done.stdout.splitlines()) == [f"{host}:cpu-{device}: empty" for device in devices]
        return time.monotonic_ns()

    def check_off(task, job, since_ns):
        """And the other one goes on."""
        other = {"mine": "hers", "hers": "mine"}[task]
        assert len(system.runners()) == 2, "supervisor and runner of the other one"
        steps, run = system.steps(task), system.info(other)["epoch"]

        def bubbles(of, leased):
            return [
                event
                for event in system.seen("bubble.end")
                if event["job"] == of and event["begin_ns"] > since_ns and event["leased"] == leased
            ]

        until(lambda: system.task(task)["why"] == "drained", f"{task} waits")
        seen = len(bubbles(job, leased=False))
        until(lambda: len(bubbles(job, leased=False)) >= seen + 20, f"bubbles of {job}")
        system.wait_steps(other, 20)
        assert bubbles({"gpt": hers, hers: "gpt"}[job], leased=True) and not bubbles(job, leased=True)
        assert system.steps(task) == steps
        assert system.info(other)["epoch"] == run and system.info(other)["restarts"] == 0

    system.start_training(stages=3, name="my-training", devices="0,1,2", pass_ms=3)
    system.wait(lambda: [job["job"] for job in system.ok("status")["jobs"]] == ["gpt"], "my training is seen")
    start_task("mine", "gpt", 2)  # which hers has not: a name alone is any user's
    # Whoever has this name later is another.
    since_ns = drain("gpt", 0, 1, 2)
    assert not system.runners()
    start_her_training(system, "her-training", 1_000_000, devices="3,4", pass_ms=3)
    system.wait_workers(5, trained=True)
    start_task("hers", hers, 1)
    check_off("mine", "gpt", since_ns)
    assert ctl(system, "uncordon", "gpt").stdout == "job root/gpt is given back\n"
    system.wait_steps("mine", 20)
    # Now it is the name of two.
    for name in ("gpt", "job:gpt"):
        refused = ctl(system, "drain", name)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused
        assert f"several things are called '{name}': job:0/gpt, job:{hers}; write one of these" in refused.stderr
    assert not any(worker["drained"] for worker in system.ok("workers")["workers"])
    since_ns = drain("nobody/gpt", 3, 4)
    check_off("hers", hers, since_ns)
    # It holds for a later run, too, until it is given back.
    system.processes.pop("her-training").kill()
    until(lambda: sum(bool(worker["ranks"]) for worker in system.ok("workers")["workers"]) == 3, "her training is gone")
    start_her_training(system, "her-next", 1_000_000, devices="3,4", pass_ms=3)
    system.wait_workers(5, trained=True)
    check_off("hers", hers, since_ns)
    assert ctl(system, "uncordon", "nobody/gpt").stdout == "job nobody/gpt is given back\n"
    for task in ("mine", "hers"):
        system.wait_steps(task, 20)
    system.check()
    assert {verdict["kind"] for verdict in system.stop_tasks("mine", "hers")} == {"stopped"}


def test_no_manager_is_said_at_once_with_what_to_do(system):
    for words in (["status"], ["load", "x.so"], ["stop", "a", "b"], ["profile", "x.so"]):
        done = ctl(system, *words, "--timeout", "3600")
        assert done.returncode == 3, done
        assert (
            f"no manager answers at ipc://{system.run_dir}/commands.sock: there is no such socket" in done.stderr
            and "freeride-manager" in done.stderr
        )


PACKAGED = r"""
set -e
mount -t tmpfs tmpfs /run
cd "$OUT"
unset FREERIDE_RUN_DIR FREERIDE_STATE_DIR XDG_RUNTIME_DIR
export FREERIDE_STATE_DIR=$OUT/s
$BIN/freeride-manager --group daemon >manager.log 2>&1 & manager=$!
$BIN/freeride-worker --device cpu-0 >worker.log 2>&1 & worker=$!
trap 'kill $manager $worker; wait $manager $worker' EXIT
until [ -S /run/freeride/worker-cpu-0.sock ] && $BIN/freeride-ctl status >/dev/null; do sleep 0.1; done
$HER $BIN/freeride-ctl status >refused.out 2>&1 || echo $? >refused.code
$HER env FREERIDE_JOB=gpt $TRAIN >training.log 2>&1 & training=$!
until $BIN/freeride-ctl --format json workers >workers.json && grep -q '"active"' workers.json; do sleep 0.1; done
kill $training
# In a container of hers: another user, process and file system namespace, and the host's sockets mounted into it.
: >unmapped.log; chmod 666 unmapped.log
$HER unshare --user --map-root-user --mount --pid --fork --kill-child --mount-proc sh -c '
  mount -t tmpfs -o mode=755 tmpfs /mnt && mkdir /mnt/freeride && mount --bind /run/freeride /mnt/freeride &&
  $BIN/freeride-ctl --run-dir /run/freeride status 2>unmapped.log || [ $? = 1 ] &&
  FREERIDE_RUN_DIR=/mnt/freeride FREERIDE_JOB=apart exec "$@"' sh $TRAIN >container.log 2>&1 & container=$!
until $BIN/freeride-ctl --format json workers >container.json && grep -q 'apart' container.json; do sleep 0.1; done
kill $container
"""


def test_where_the_packaged_units_put_it_her_programs_find_it(system):
    """No settings: root's programs use /run/freeride; hers have no folder of her own, and look there."""
    words = flags(stages=2, layers=2, iterations=100000, hook="on", log_json="/dev/null", **SMALL)
    done = subprocess.run(
        [
            "unshare",
            *"--mount --propagation private --pid --fork --kill-child --mount-proc".split(),
            "sh",
            "-c",
            PACKAGED,
        ],
        env={
            **system.env,
            "OUT": str(system.root),
            "BIN": str(BUILD / "bin"),
            "HER": " ".join(AS_NOBODY),
            "TRAIN": " ".join(map(str, [PYTHON, SOURCE / "hooks/examples/train_gpt.py", *words])),
        },
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    said = {path.name: path.read_text() for path in pathlib.Path(system.root).glob("*.log")}
    assert done.returncode == 0, (done.stderr, said)
    refused = (system.root / "refused.out").read_text()
    assert "nobody may not use /run/freeride/commands.sock: it is for root and the group daemon" in refused
    (worker,) = json.loads((system.root / "workers.json").read_text())["workers"]
    assert worker["ranks"][0]["job"] == f"{NOBODY}/gpt" and "freeride:" not in said["training.log"]
    assert "belongs to a user of the host's who has no number in this container" in said["unmapped.log"]
    (worker,) = json.loads((system.root / "container.json").read_text())["workers"]
    assert f"{NOBODY}/apart" in [rank["job"] for rank in worker["ranks"]] and "freeride:" not in said["container.log"]
    # A worker is called by its host's name and some digits that no other host of that name has.
    host, device = worker["state"]["worker"].split(":")
    assert device == "cpu-0" and host.startswith(f"{worker['state']['host'][:47]}-")


# A file system whose files can be opened, and never be closed, and its owner, nobody, who sends one to a worker.
BLOCKS = r"""
import ctypes, os, socket, struct, sys
folder, path = sys.argv[1:]
device = os.open("/dev/fuse", os.O_RDWR)
if ctypes.CDLL(None).mount(b"blocks", folder.encode(), b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device):
    print("no FUSE", flush=True), sys.exit()
def attributes(node):
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755 if node == 1 else 0o100644, 1, 0, 0, 0, 4096, 0)
def serve():
    while True:
        request = os.read(device, 1 << 20)
        _, call, unique, node = struct.unpack_from("<IIQQ", request)
        answer = {
            26: struct.pack("<4I2H2I2H8I", 7, 31, 0, 0, 0, 0, 1 << 16, 1, 0, 0, *[0] * 8),
            1: struct.pack("<4Q2I", 2, 1, 60, 60, 0, 0) + attributes(2),
            3: struct.pack("<QII", 60, 0, 0) + attributes(node),
            14: struct.pack("<QII", 1, 0, 0),
        }.get(call)
        if call != 25:  # FLUSH, which close() waits for
            error = 0 if answer is not None else -38
            os.write(device, struct.pack("<IiQ", 16 + len(answer or b""), error, unique) + (answer or b""))
if os.fork():
    serve()  # and everybody who waits goes on when this process ends
os.close(device)
file = os.open(folder + "/x", os.O_RDONLY)
os.setresuid(65534, 65534, 65534)
worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
worker.connect(path)
socket.send_fds(worker, [b"FRHELLO1"], [file])
print(worker.recv(600).decode(), flush=True)
sys.stdin.read()
"""


def test_a_file_that_cannot_be_closed_holds_no_worker_up(system):
    system.start_manager()
    worker = system.start_worker("cpu-0", cores="")
    system.wait_workers(1)
    folder = system.root / "blocks"
    folder.mkdir()
    owner = subprocess.Popen(
        ["unshare", "--mount", PYTHON, "-c", BLOCKS, str(folder), str(system.run_dir / "worker-cpu-0.sock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        said = owner.stdout.readline()
        if said == "no FUSE\n":
            pytest.skip("this kernel has no FUSE")
        assert "no hello came within 5 s" in said
        # Whoever closes it waits still, and the worker does not.
        readers = [
            int(pid) for pid in pathlib.Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        ]
        assert len(readers) == 1
        start_her_training(system, "hers", 100000, env={"FREERIDE_STAGES": "2"})
        until(
            lambda: [rank for one in system.ok("workers")["workers"] for rank in one["ranks"]],
            "another's rank is taken",
        )
    finally:
        owner.kill()
        owner.stdin.close()
        owner.wait()
    until(lambda: not pathlib.Path(f"/proc/{readers[0]}").exists(), "the reader's end")
