"""A manager and two hosts, as namespaces: a training whose stages are on both, side tasks in the bubbles of both, and
what becomes of all that when links, nodes, workers, managers and keys fail. make test-hosts."""

import os
import shutil
import signal
import time

import pytest

from rig.hosts import Hosts, Wires
from rig.processes import Failure
from rig.testing import find_plugin, until

RANKS = {"vertices": 2000, "edges": 8000, "step_ms": 1, "repeat": 1}
QUICK = ("--order-pause-ms", 1500, "--order-stop-ms", 60_000, "--order-margin-ms", 2500)  # after a start less is fenced
COMPARED = 150  # iterations whose losses have to be equal with and without FreeRide
ROUNDS = 1_000_000  # iterations of a training that goes on until it is ended

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")


@pytest.fixture
def wires(request):
    """`request.param`: the hosts."""
    try:
        with Wires(getattr(request, "param", "ab")) as made:
            yield made
    except Failure as failure:
        pytest.skip(f"no hosts can be made here: {failure}")


@pytest.fixture
def hosts(wires, request):
    """`request.param`: flags of the manager's."""
    flags = getattr(request, "param", ())
    with Hosts(wires) as running:
        running.start_manager_there(*flags)
        for host in wires.names:
            running.start_node(host)
        running.wait_workers(len(wires.names))
        yield running


def counter(hosts, name, stage, *flags, **params):
    params = {"step_us": 300, "sleep": 1, **params}
    hosts.load(find_plugin("counter.so"), name, "--stage", stage, *flags, params=params)


def one_line(text, *words):
    assert len(text.strip().split("\n")) == 1, text
    for word in words:
        assert word in text, text


def wait_log(hosts, name, *words):
    until(lambda: all(word in hosts.log(name) for word in words), f"{name} says {words}")


def test_a_training_on_two_hosts_is_harvested_on_both_and_loses_nothing(hosts):
    hosts.start_training_there(iterations=ROUNDS)
    hosts.wait(lambda: all(hosts.worker(host)["state"]["stage"] >= 0 for host in "ab"), "trainers on both hosts")
    # From the manager's host, from a file; and from the other by its own sockets, to a stage that is not there.
    hosts.load(find_plugin("pagerank.so"), "rank-a", "--stage", 0, params=RANKS)
    counter(hosts, "count-b", 1)
    far = ["--stage", "0", "--param", "step_us=300", "--param", "sleep=1"]
    answer = hosts.ctl_on("b", "load", find_plugin("counter.so"), "--name", "count-a", *far)
    assert answer.code == 0, answer
    assert answer.json["task"]["load"]["user"] == "root@b"
    for task, host in (("rank-a", "a"), ("count-b", "b"), ("count-a", "a")):
        hosts.wait_steps(task, 5)
        assert hosts.task(task)["worker"].split(":")[0] == host
    # Its host's root is a user like any other there, and no operator.
    one_line(hosts.ctl_on("b", "stop", "count-b").err, "may not command 'stop'")
    # Bubbles of both hosts, at the manager, and there of the own host.
    for place, jobs in (("manager", ["0", "1"]), ("b", ["1"])):
        for rank in jobs:
            words = ["events", "--topic", f"bubble.end/gpt/{rank}", "--count", 1]
            seen = hosts.ctl(*words) if place == "manager" else hosts.ctl_on(place, *words)
            assert seen.code == 0 and seen.json["rank"] == int(rank), seen
    told = hosts.ctl_on("b", "events", "--topic", "task.state/rank-a", "--count", 1)
    assert told.code == 0 and told.json["plugin"] == "pagerank.so", told
    hosts.wait(lambda: len(hosts.iterations()) >= COMPARED, "enough iterations")
    for rank in (0, 1):
        hosts.kill(f"training-{rank}")
        hosts.processes.pop(f"training-{rank}")
    hooked = hosts.losses()
    for name in ("rank-a", "count-b", "count-a"):
        assert not hosts.task(name)["verdict"]["kind"], hosts.task(name)
    assert {verdict["kind"] for verdict in hosts.stop_tasks("rank-a", "count-b", "count-a")} == {"stopped"}

    hosts.start_training_there(hook="off", name="plain", iterations=COMPARED)
    for rank in (0, 1):
        hosts.finish(f"plain-{rank}", 600)
    assert len(hosts.losses("plain")) == COMPARED and hooked[:COMPARED] == hosts.losses("plain")


def test_a_link_that_is_cut_for_30_s_pauses_side_tasks_there_and_nothing_else(hosts):
    hosts.start_training_there(iterations=ROUNDS)
    hosts.wait(lambda: all(hosts.worker(host)["state"]["stage"] >= 0 for host in "ab"), "trainers on both hosts")
    for stage, host in enumerate("ab"):
        counter(hosts, f"count-{host}", stage)
    for host in "ab":
        hosts.wait_steps(f"count-{host}", 20)
    epoch = hosts.info("count-b")["epoch"]
    pid = hosts.worker_pid("b")
    before = len(hosts.iterations())
    hosts.wires.cut("ctl")
    wait_log(hosts, "node-b", "is lost")
    told = hosts.ctl_on("b", "tasks", timeout=20)
    assert told.code != 0
    one_line(told.err, "does not reach the manager")
    time.sleep(30)
    steps = hosts.steps("count-a")
    hosts.wait_steps("count-a", 20)  # whose host is reached
    hosts.wires.mend("ctl")
    hosts.wait_workers(2)
    hosts.wait_steps("count-b", 20)
    assert hosts.steps("count-a") > steps
    assert hosts.info("count-b")["epoch"] >= epoch
    assert hosts.worker_pid("b") == pid
    assert len(hosts.iterations()) > before
    hosts.check()
    assert {verdict["kind"] for verdict in hosts.stop_tasks("count-a", "count-b")} == {"stopped"}


@pytest.mark.parametrize("hosts", [QUICK], indirect=True, ids=["quick"])
@pytest.mark.parametrize("deaf", ["manager", "node"])
def test_a_link_that_is_cut_in_one_direction_pauses_as_one_that_is_cut(hosts, deaf):
    hosts.start_training_there(iterations=ROUNDS)
    hosts.wait(lambda: all(hosts.worker(host)["state"]["stage"] >= 0 for host in "ab"), "trainers on both hosts")
    for stage, host in enumerate("ab"):
        counter(hosts, f"count-{host}", stage)
    for host in "ab":
        hosts.wait_steps(f"count-{host}", 20)
    pid, epoch = hosts.worker_pid("b"), hosts.info("count-b")["epoch"]
    source, target = ("b", "a") if deaf == "manager" else ("a", "b")
    hosts.wires.cut_from(source, target)
    time.sleep(5)  # orders of 1.5 s are over; whatever was on its way has come
    steps, before = hosts.steps("count-b"), len(hosts.iterations())
    hosts.wait_steps("count-a", 20)  # whose host is reached
    time.sleep(3)
    # Where the node is deaf the manager hears it: it says that the task makes no steps.
    assert hosts.steps("count-b") == steps
    assert len(hosts.iterations()) > before
    hosts.wires.mend_from(source, target)
    hosts.wait_workers(2)
    hosts.wait_steps("count-b", 20)
    assert hosts.worker_pid("b") == pid and hosts.info("count-b")["epoch"] >= epoch
    hosts.check()
    assert {verdict["kind"] for verdict in hosts.stop_tasks("count-a", "count-b")} == {"stopped"}


BAD_LINKS = {"slow": {"delay_ms": 300, "bytes_per_s": 40_000}, "lossy": {"delay_ms": 30, "stall_s": 4, "break_s": 6}}


@pytest.mark.parametrize("how", BAD_LINKS)
def test_over_a_bad_link_side_tasks_are_loaded_and_stopped_as_over_a_good_one(hosts, how):
    hosts.end("node-b")
    address = hosts.start_bad_link("b", 7421, **BAD_LINKS[how])
    hosts.start_node("b", manager=address)
    hosts.start_training_there(iterations=ROUNDS)
    hosts.wait(lambda: all(hosts.worker(host)["state"]["stage"] >= 0 for host in "ab"), "trainers on both hosts")
    for name in ("first", "second", "third"):
        counter(hosts, name, 1)
        hosts.wait_steps(name, 20)
        assert hosts.task(name)["worker"].split(":")[0] == "b"
        before = len(hosts.iterations())
        hosts.wait(lambda before=before: len(hosts.iterations()) > before + 3, "training goes on")
        assert hosts.stop_tasks(name)[0]["kind"] == "stopped"
    told = hosts.ctl_on("b", "load", find_plugin("counter.so"), "--name", "far", "--stage", "1", timeout=30)
    assert told.code == 0, told
    hosts.wait_steps("far", 5)
    hosts.check()


@pytest.mark.parametrize("wires", ["abc"], indirect=True)
def test_three_hosts_are_harvested_and_one_that_is_cut_off_holds_up_nobody(hosts):
    hosts.start_training_there(iterations=ROUNDS, stages=3, hosts="abc", layers=3)
    hosts.wait(lambda: all(hosts.worker(host)["state"]["stage"] >= 0 for host in "abc"), "trainers on three hosts")
    for stage, host in enumerate("abc"):
        counter(hosts, f"count-{host}", stage)
    for host in "abc":
        hosts.wait_steps(f"count-{host}", 20)
        assert hosts.task(f"count-{host}")["worker"].split(":")[0] == host
    hosts.wires.cut("ctl", "c")
    wait_log(hosts, "node-c", "is lost")
    before = len(hosts.iterations())
    for host in "ab":
        hosts.wait_steps(f"count-{host}", 20)
    hosts.wait(lambda: len(hosts.iterations()) > before + 3, "training goes on")
    hosts.wires.mend("ctl", "c")
    hosts.wait_workers(3)
    hosts.wait_steps("count-c", 20)
    hosts.check()
    assert {verdict["kind"] for verdict in hosts.stop_tasks("count-a", "count-b", "count-c")} == {"stopped"}


def test_node_worker_and_manager_are_killed_and_come_back(hosts):
    hosts.start_training_there(iterations=ROUNDS)
    hosts.wait(lambda: all(hosts.worker(host)["state"]["stage"] >= 0 for host in "ab"), "trainers on both hosts")
    counter(hosts, "count-b", 1)
    hosts.wait_steps("count-b", 20)
    epoch, pid = hosts.info("count-b")["epoch"], hosts.worker_pid("b")

    # The node's death ends nothing: its worker goes on and is found by the next node.
    hosts.kill("node-b")
    hosts.processes.pop("node-b")
    hosts.start_node("b")
    wait_log(hosts, "node-b", "runs already")
    hosts.wait_workers(2)
    hosts.wait_steps("count-b", 20)
    assert hosts.worker_pid("b") == pid and hosts.info("count-b")["epoch"] == epoch

    # The worker's ends its side tasks; the node starts another, which the manager gives them again.
    os.kill(pid, signal.SIGKILL)
    wait_log(hosts, "node-b", "has ended")
    until(lambda: hosts.worker_pid("b") not in (None, pid), "another worker")
    hosts.wait_steps("count-b", 20)
    pid = hosts.worker_pid("b")

    epoch = hosts.info("count-b")["epoch"]
    hosts.kill("manager")
    hosts.processes.pop("manager")
    hosts.start_manager_there()
    hosts.wait_workers(2)
    hosts.wait_steps("count-b", 20)
    assert hosts.worker_pid("b") == pid and hosts.info("count-b")["epoch"] == epoch
    assert hosts.stop_tasks("count-b")[0]["kind"] == "stopped"
    # What it is told ends the node ends its worker too, in good order.
    hosts.end("node-b")
    assert hosts.worker_pid("b") is None
    until(lambda: hosts.worker("b")["state"]["state"] == "down", "the manager knows")
    hosts.wait_iterations(3)


def test_a_host_joins_by_a_command_here_and_one_there(hosts, tmp_path):
    hosts.end("node-b")
    hosts.ok("keys", "revoke", "node-b")
    key, etc = tmp_path / "b-node.key", tmp_path / "etc"
    added = hosts.ok("host", "add", "b", "--no-start", "--etc", tmp_path / "head", "--out", key)
    assert added["listen"] == "tcp://*:7420" and added["join"].endswith("b-node.key"), added
    join = ["host", "join", hosts.address, key, "--no-start", "--etc", etc]
    joined = hosts.ctl_on("b", *join, "--device", "cpu-1", "--cores", 1 % os.cpu_count())
    assert joined.code == 0 and joined.json["host"] == "b" and joined.json["changed"], joined
    hosts.start_joined_node("b", etc / "node.env")
    hosts.wait_workers(2)
    hosts.load(find_plugin("counter.so"), "t", "--when-idle", params={"step_us": 300, "sleep": 1})
    hosts.wait_steps("t", 20)
    # While it runs, and when the manager's host is cut off.
    again = hosts.ctl_on("b", *join)
    assert again.code == 0 and not again.json["changed"], again
    hosts.wires.cut("ctl")
    refused = hosts.ctl_on("b", *join)
    assert refused.code == 3
    one_line(refused.err, "nobody is reached", "7420", "firewall")
    hosts.wires.mend("ctl")


def test_strangers_are_refused_in_one_line(hosts, tmp_path):
    def fails(key, *words, code, name):
        process = hosts.start_node("b", "--run-dir", hosts.root / "x", key=key, name=name)
        assert process.wait(60) == code, hosts.log(name)
        hosts.processes.pop(name)
        one_line(hosts.log(name), *words)

    monitor = hosts.key("watch", "monitor")
    fails(tmp_path / "none", "none", code=1, name="no-key")
    fails(monitor, "no key of a node", "monitor", code=2, name="monitors-key")
    one_line(hosts.ctl("keys", "make", "twice", "--role", "node", "--host", "b", "--out", tmp_path / "k").err, "host b")
    # A key that this manager has never seen.
    lines = hosts.keys["a"].read_text().splitlines()
    words = [hosts.tree.program("freeride-ctl"), "--key", monitor, "--manager", hosts.address]
    told = hosts.ctl_on("b", *words[1:], "stop", "x")
    assert told.code == 1
    one_line(told.err, "hears events")
    wrong = tmp_path / "wrong.key"
    foreign = hosts.root / "foreign"
    hosts.ok("keys", "make", "w", "--role", "node", "--host", "w", "--out", wrong, "--keys-dir", foreign)
    text = [line for line in wrong.read_text().splitlines() if not line.startswith("manager ")]
    manager = next(line for line in lines if line.startswith("manager "))
    wrong.write_text("\n".join([*text, manager, ""]))
    hosts.end("node-b")
    hosts.start_node("b", key=wrong, name="stranger")
    wait_log(hosts, "stranger", "refused this key")
    told = hosts.ctl_on("b", "tasks", timeout=30)
    assert told.code == 1
    one_line(told.err, "refused this key")
    hosts.end("stranger")
    assert hosts.log("stranger").count("refused this key") == 1

    # One that is revoked while it is used.
    hosts.start_node("b")
    hosts.wait_workers(2)
    hosts.ok("keys", "revoke", "node-b")
    told = until(lambda: next((a for a in [hosts.ctl_on("b", "tasks")] if a.code), None), "the key's end")
    one_line(told.err, "does not know your key")
    until(lambda: hosts.worker("b")["state"]["state"] == "lost", "its worker is lost")
    assert hosts.ctl_on("a", "tasks").code == 0


def test_users_of_a_host_are_who_its_kernel_says(hosts):
    answer = hosts.ctl_on("b", "load", find_plugin("counter.so"), "--name", "mine", "--paused")
    assert answer.code == 0, answer
    assert hosts.info("mine")["load"]["user"] == "root@b"
    one_line(hosts.ctl_on("a", "stop", "mine").err, "root@b's")
    one_line(hosts.ctl_on("a", "faults", "--lift", "user=root@b").err, "operator")
    assert hosts.ctl_on("b", "stop", "mine").code == 0
    # Nobody but root and the group reaches the sockets.
    one_line(hosts.ctl_on("b", "tasks", user=65534).err, "commands.sock")


def test_a_plugin_of_many_pieces_comes_from_afar(hosts, tmp_path):
    """Through the manager's drop folder, and along with a load from another host's file."""
    hosts.end("node-a")
    large = tmp_path / "large.so"
    content = find_plugin("counter.so").read_bytes()
    for name in ("dropped", "sent"):
        large.write_bytes(content + os.urandom(7 << 20))
        flags = ["--name", name, "--when-idle", "--param", "step_us=300", "--param", "sleep=1"]
        if name == "dropped":
            shutil.copy(large, hosts.state_dir / "plugins/large.so")
            hosts.ok("load", "large.so", *flags)
        else:
            answer = hosts.ctl_on("b", "load", large, *flags, timeout=60)
            assert answer.code == 0, answer
        hosts.wait_steps(name, 5)
        kept = hosts.root / "b/s/store" / f"{hosts.task(name)['sha256']}.so"
        assert kept.stat().st_size == len(content) + (7 << 20)
        assert hosts.stop_tasks(name)[0]["kind"] == "stopped"


def test_what_one_hosts_drop_folder_has_is_loaded_elsewhere_by_who_names_that_host(hosts, tmp_path):
    content = find_plugin("counter.so").read_bytes() + os.urandom(3 << 20)
    (tmp_path / "rare.so").write_bytes(content)
    shutil.move(tmp_path / "rare.so", hosts.root / "b/s/plugins/rare.so")
    until(lambda: "rare.so" in str(hosts.ok("plugins")), "its worker has told of it")
    flags = ["--when-idle", "--no-profile", "--param", "step_us=300", "--param", "sleep=1"]
    for name, words in {
        "a:rare.so": "hosts that have it: b",
        "c:rare.so": "there is no host 'c'",
        ":rare.so": "is not HOST:NAME",
        "b:": "is not HOST:NAME",
    }.items():
        one_line(hosts.ctl("load", name, "--name", "no", *flags).err, words)
    hosts.ok("drain", "host:b")
    # By its name alone nothing is brought from there: who could say whose name it is?
    one_line(hosts.ctl("load", "rare.so", "--name", "plain", *flags).err, "one on host b", "load b:rare.so")
    hosts.ok("load", "b:rare.so", "--name", "named", *flags)
    hosts.wait_steps("named", 5)
    assert hosts.task("named")["worker"].startswith("a:")
    assert (hosts.root / "a/s/store" / f"{hosts.task('named')['sha256']}.so").read_bytes() == content
    assert hosts.stop_tasks("named")[0]["kind"] == "stopped"


def test_a_saved_state_follows_its_task_to_another_host(hosts):
    hosts.load(find_plugin("keeper.so"), "t", "--when-idle")
    hosts.wait_steps("t", 50)

    def host():
        return (hosts.task("t").get("worker") or "").split(":")[0]

    def counted_once():
        counters = hosts.task("t")["counters"]
        return counters["metrics"].get("n") == counters["steps"]

    old, counted = host(), hosts.task("t")["counters"]["metrics"]["n"]
    assert counted >= 50
    hosts.ok("drain", f"host:{old}")
    until(lambda: host() not in ("", old), "it is placed on the other host")
    until(lambda: hosts.task("t")["counters"]["metrics"].get("n", 0) > counted, "it goes on from there")
    until(counted_once, "no step is lost or counted twice")
    assert hosts.stop_tasks("t")[0]["kind"] == "stopped"


def test_two_jobs_of_one_script_are_two(hosts):
    for host in "ab":
        hosts.start_training_there(name=f"own-{host}", stages=1, hosts=host, job=None, layers=1, iterations=ROUNDS)
    hosts.wait(lambda: all(hosts.worker(host)["state"]["job"] for host in "ab"), "trainers on both hosts")
    first, second = (hosts.worker(host)["state"]["job"] for host in "ab")
    assert first != second and "train_gpt" in first and "train_gpt" in second


@pytest.mark.parametrize("hosts", [QUICK], indirect=True, ids=["quick"])
def test_a_manager_on_yesterdays_state_file_deletes_nothing_on_other_hosts(hosts):
    yesterday, today = hosts.root / "yesterday.db", hosts.root / "today.db"

    def swap(keep, use=None):
        hosts.end_manager_on(keep, use)
        hosts.start_manager_there(*QUICK)
        hosts.wait_workers(2)

    swap(yesterday)
    hosts.load(find_plugin("counter.so"), "t", "--when-idle", params={"step_us": 2000, "sleep": 1})
    hosts.wait_steps("t", 20)
    info = hosts.info("t")
    swap(today, use=yesterday)
    until(lambda: hosts.task("t").get("why") == "not_recorded", "t is shown")
    swap(hosts.root / "other.db", use=today)
    hosts.wait_steps("t", 20)
    assert hosts.info("t")["epoch"] == info["epoch"] and hosts.info("t")["restarts"] == 0
    assert hosts.stop_tasks("t")[0]["kind"] == "stopped"
