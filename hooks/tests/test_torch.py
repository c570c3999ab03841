"""The hook under real torch.distributed processes over gloo."""

import ast
import graphlib
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from freeride import pages
from support import SMALL, SOURCE, TRAIN, WATCHDOG, Worker, environment, finish, python, world

INIT = "dist.init_process_group('gloo')\n"


def train(run_dir, log, *arguments, hook="on", **env):
    return subprocess.run(
        [sys.executable, TRAIN, "--log-json", log, "--hook", hook, *SMALL, *arguments],
        env=environment(run_dir, **env),
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )


def losses(log):
    return [json.loads(line)["loss"] for line in open(log)]


@pytest.fixture(name="unhooked", scope="module")
def _unhooked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unhooked")
    assert train(folder, folder / "log", "--iterations", "6", hook="off").returncode == 0
    return losses(folder / "log")


def test_the_packages_modules_import_each_other_in_no_circle():
    uses = {}
    for path in (SOURCE / "hooks/python/freeride").glob("*.py"):
        imports = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.level == 1
        ]
        uses[path.stem] = {
            name
            for node in imports
            for name in ([node.module] if node.module else [alias.name for alias in node.names])
        }
    assert "_torch" in uses["_hook"]
    list(graphlib.TopologicalSorter(uses).static_order())  # raises CycleError


def test_marks_are_the_schedules_and_losses_the_same(tmp_path, unhooked):
    """1F1B over 2 stages and 4 micro-batches: 4 receives a stage and iteration, marked in order, with nothing left open."""
    workers = [Worker(tmp_path, f"cpu-{rank}") for rank in range(2)]
    log = tmp_path / "log"
    job = subprocess.Popen(
        [sys.executable, TRAIN, "--log-json", log, "--hook", "on", *SMALL, "--iterations", "6"],
        env=environment(tmp_path, FREERIDE_JOB="the job"),
        stderr=subprocess.PIPE,
        text=True,
    )
    seen = [worker.take() for worker in workers]
    _, errors = job.communicate(timeout=WATCHDOG)
    assert job.returncode == 0 and "freeride" not in errors
    assert losses(log) == unhooked
    for stage, page in enumerate(seen):
        assert workers[stage].wait_gone()
        view = page.copy()
        assert (view.job, view.device, view.stage, view.stages, view.replicas) == (
            b"the job",
            f"cpu-{stage}".encode(),
            stage,
            2,
            1,
        )
        assert view.framework.startswith(b"torch ")
        assert (view.hook_state, view.state_word, view.iteration, view.waits) == (pages.HOOK_GONE, 0, 6, 4)
        words = [record.state_word for _, record in pages.finished_bubbles(page)]
        assert words == [pages.state(iteration, wait) for iteration in range(6) for wait in range(1, 5)]
        end = 0
        for _, record in pages.finished_bubbles(page):
            assert end <= record.begin_ns <= record.end_ns
            end = record.end_ns
        for iteration in range(6):
            record = view.iterations[iteration]
            inside = [
                bubble
                for _, bubble in pages.finished_bubbles(page)
                if pages.state_iteration(bubble.state_word) == iteration
            ]
            assert record.iteration == iteration
            assert record.bubble_ns == sum(bubble.end_ns - bubble.begin_ns for bubble in inside)
            assert record.begin_ns <= inside[0].begin_ns and inside[-1].end_ns <= record.end_ns
        assert view.learned[0].samples > 0
        assert chr(view.learned[0].type) == "BA"[stage]
    for worker in workers:
        worker.close()


def test_four_stages(tmp_path):
    workers = [Worker(tmp_path, f"cpu-{rank}") for rank in range(4)]
    job = subprocess.Popen(
        [sys.executable, TRAIN, "--stages", "4", "--hook", "on", *SMALL, "--iterations", "3"],
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    )
    seen = [worker.take() for worker in workers]
    _, errors = job.communicate(timeout=WATCHDOG)
    assert job.returncode == 0 and "freeride" not in errors
    assert [page.view.waits for page in seen] == [4, 8, 8, 4]
    for worker in workers:
        worker.close()


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"FREERIDE_HOOK": "0"},
        {"FREERIDE_HOOK_LIBRARY": "/nowhere.so"},
        {"FREERIDE_STAGE": "many"},
        {"FREERIDE_STAGE": "7"},
        {"FREERIDE_GROUP": "nonsense"},
        {"FREERIDE_DEVICE": "../x"},
        {"FREERIDE_RUN_DIR": "/proc/nowhere"},
    ],
)
def test_without_worker_or_with_nonsense_training_is_the_same(tmp_path, unhooked, env):
    done = train(tmp_path, tmp_path / "log", "--iterations", "6", **env)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "log") == unhooked
    said = [line for line in done.stderr.splitlines() if line.startswith("freeride: ")]
    quiet = env == {} or "FREERIDE_HOOK" in env or "FREERIDE_RUN_DIR" in env
    assert len(said) == (0 if quiet else 2), said  # one line a rank


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_worker_killed_or_frozen_in_the_middle(tmp_path, unhooked, how):
    """The worker is a process of its own that takes both pages and then is killed, or never answers again."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"""
import sys, time
sys.path[:0] = [{str(SOURCE / "hooks/tests")!r}, {str(SOURCE / "hooks/python")!r}]
from support import Worker
workers = [Worker({str(tmp_path)!r}, f"cpu-{{rank}}") for rank in range(2)]
print("ready", flush=True)
for worker in workers: worker.take()
print("taken", flush=True)
time.sleep(1000)
""",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "ready\n"
    log = tmp_path / "log"
    job = subprocess.Popen(
        [sys.executable, TRAIN, "--log-json", log, "--hook", "on", *SMALL, "--iterations", "6"],
        env=environment(tmp_path),
    )
    assert holder.stdout.readline() == "taken\n"
    holder.send_signal(how)
    assert job.wait(timeout=WATCHDOG) == 0
    assert losses(log) == unhooked
    holder.kill()
    holder.wait()


def test_restarted_worker_gets_the_page_again(tmp_path):
    ranks = world(
        INIT
        + """
import time
stop = os.environ["FREERIDE_RUN_DIR"] + "/stop"
while not os.path.exists(stop):
    time.sleep(0.01)
""",
        1,
        tmp_path,
    )
    incarnations = set()
    for _ in range(3):
        worker = Worker(tmp_path, "cpu-0")
        incarnations.add(worker.take().view.header.incarnation)
        worker.close()
    assert len(incarnations) == 1
    (tmp_path / "stop").touch()
    assert finish(ranks)[0][1] == 0


CALLS = (
    """
from torch.distributed import isend as early_isend, irecv as early_irecv
"""
    + INIT
    + """
import freeride
from torch.distributed import P2POp
t, u = torch.full((4,), float(rank)), torch.empty(4)
peer = 1 - rank
def got(tensor): assert tensor.tolist() == [float(peer)] * 4, tensor
# recv, of one source and of any
if rank == 0: dist.send(t, 1); dist.recv(u)
else: dist.recv(u, 0); dist.send(t, 0)
got(u)
# posted early, waited late
for send, receive in ((dist.isend, dist.irecv), (early_isend, early_irecv)):
    u.zero_(); r = receive(u, peer); s = send(t, peer); r.wait(); s.wait(); got(u)
# batches of functions imported before and after
for send, receive in ((dist.isend, dist.irecv), (early_isend, early_irecv)):
    u.zero_()
    for work in dist.batch_isend_irecv([P2POp(send, t, peer), P2POp(receive, u, peer)]): work.wait()
    got(u)
# of no pipeline: collectives, and another group
dist.all_reduce(torch.ones(1)); dist.barrier(); dist.broadcast(torch.ones(1), 0)
other = dist.new_group([0, 1])
if rank == 0: dist.send(t, 1, group=other)
else: dist.recv(u, 0, group=other); got(u)
# a receive that fails is still an end
try: dist.recv(torch.empty(4), 99)
except (RuntimeError, ValueError, IndexError): pass
freeride.iteration_end()
print(freeride.state())
"""
)


def test_which_calls_are_waits(tmp_path):
    workers = [Worker(tmp_path, f"cpu-{rank}") for rank in range(2)]
    ranks = world(CALLS, 2, tmp_path)
    seen = [worker.take() for worker in workers]
    for (out, err), code in finish(ranks):
        assert code == 0, err
        assert out == "active\n" and "freeride" not in err
    assert [page.view.waits for page in seen] == [5, 5]
    for worker in workers:
        worker.close()


def test_groups_by_rule_and_by_argument(tmp_path):
    ranks = world(
        """
import freeride
"""
        + INIT
        + """
pair, both = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
if os.environ.get("GIVE") == "pair": freeride.attach(group=pair if rank < 2 else None, stage=rank % 2, stages=2)
t = torch.zeros(1)
for group in (None, pair, both):
    if rank == 0: dist.send(t, 1, group=group)
    if rank == 1: dist.recv(t, 0, group=group)
from freeride._hook import hook
print(hook.waits)
""",
        3,
        tmp_path,
        FREERIDE_GROUP="ranks=0,1",
    )
    assert finish(ranks)[1][0][0] == "1\n"


@pytest.mark.parametrize("rule,waits", [("world", 1), ("any", 3), ("size=2", 1), ("size=3", 2), ("ranks=0,1,2", 2)])
def test_group_rules(tmp_path, rule, waits):
    ranks = world(
        INIT
        + """
pair, everyone = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
t = torch.zeros(1)
for group in (None, pair, everyone):
    if rank == 0: dist.send(t, 1, group=group)
    if rank == 1: dist.recv(t, 0, group=group)
from freeride._hook import hook
print(hook.waits)
""",
        3,
        tmp_path,
        FREERIDE_GROUP=rule,
    )
    (out, err), code = finish(ranks)[1]
    assert code == 0, err
    assert out == f"{waits}\n"


def test_attach_by_call_before_and_after_init_and_twice(tmp_path):
    ranks = world(
        "import freeride\nassert freeride.attach(job='named')\nassert freeride.state() == 'waiting'\n"
        + INIT
        + """
assert freeride.attach(job='other')
assert freeride.state() == 'starting'
freeride.detach()
assert freeride.state() == 'off'
assert freeride.attach(job='third', device='cpu-9', stage=1, stages=3)
from freeride._hook import hook
page = hook.page()
print(page.job.decode(), page.device.decode(), page.stage, page.stages)
""",
        1,
        tmp_path,
        hooked=False,
    )
    (out, err), code = finish(ranks)[0]
    assert code == 0, err
    assert out == "third cpu-9 1 3\n" and "freeride" not in err


SHOW_JOB = (
    INIT
    + """
from freeride._hook import hook
print(hook.page().job.decode())
"""
)


def jobs_of(ranks):
    """What each rank of a world calls its job."""
    names = []
    for (out, err), code in finish(ranks):
        assert code == 0, err
        names.append(out.strip())
    return names


def test_a_job_that_is_named_keeps_its_name(tmp_path):
    for env, wanted in (
        ({"FREERIDE_JOB": "j"}, "j"),
        ({"TORCHELASTIC_RUN_ID": "e", "SLURM_JOB_ID": "7"}, "e"),
        ({"FREERIDE_JOB": "j", "TORCHELASTIC_RUN_ID": "e", "SLURM_JOB_ID": "7"}, "j"),
    ):
        assert jobs_of(world(SHOW_JOB, 1, tmp_path, **env)) == [wanted]


def test_two_jobs_of_one_script_have_two_names_and_all_ranks_of_one_have_one(tmp_path):
    for env, begin in (
        ({}, "rank.py-"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "rank.py-"),
        ({"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "alps"}, "rank.py-alps-7-"),
    ):
        one, other = (world(SHOW_JOB, 3, tmp_path, **env) for _ in range(2))  # beside each other
        names, others = set(jobs_of(one)), set(jobs_of(other))
        assert len(names) == len(others) == 1 and names != others
        assert all(re.fullmatch(re.escape(begin) + "[0-9a-f]{8}", name) for name in names | others)


def test_ranks_of_one_job_agree_though_they_would_call_it_differently(tmp_path):
    code = "os.environ['SLURM_JOB_ID'] = str(rank)\n" + SHOW_JOB
    assert len(set(jobs_of(world(code, 2, tmp_path)))) == 1


def test_a_store_that_does_not_answer_holds_nobody_up_for_long(tmp_path):
    """And the name is then what all ranks have in common."""
    code = """
import threading
class Silent:
    def compare_set(self, *_): threading.Event().wait()
    def get(self, *_): raise AssertionError("a get may wait for ever")
class Poor:
    pass
import torch.distributed.distributed_c10d as c10d
real = c10d._get_default_store
c10d._get_default_store = Poor if rank else Silent
"""
    names = jobs_of(world(code + SHOW_JOB, 2, tmp_path, SLURM_JOB_ID=7, SLURM_CLUSTER_NAME="alps"))
    assert names == ["rank.py-alps-7"] * 2
    (name,) = jobs_of(world(code + SHOW_JOB + "print(os.environ['MASTER_PORT'])", 1, tmp_path))
    assert name == "rank.py-{}\n{}".format(*[name.split("\n")[1]] * 2)


def test_a_long_script_name_leaves_room_for_what_tells_jobs_apart(tmp_path):
    code = SHOW_JOB.replace("from freeride._hook", "import freeride\nfrom freeride._hook", 1)
    code = "import sys; sys.modules['__main__'].__file__ = '/x/' + 'ä' * 80 + '.py'\n" + code
    one, other = (jobs_of(world(code, 2, tmp_path)) for _ in range(2))
    assert len(set(one)) == len(set(other)) == 1 and one != other


def test_optimizers_end_iterations(tmp_path):
    """Made before and after the attach, of one's own, wrapped, and two in one iteration."""
    ranks = world(
        """
from torch import nn
model = nn.Linear(2, 2)
before = torch.optim.SGD(model.parameters(), lr=0.1)
"""
        + INIT
        + """
import freeride
from freeride._hook import hook
class Own(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    def step(self, closure=None): return "own"
class Around(torch.optim.Adam):
    def step(self, closure=None): return super().step(closure)
after, own, around = torch.optim.AdamW(model.parameters()), Own(model.parameters()), Around(model.parameters())
def wait():
    t = torch.zeros(1)
    work = dist.irecv(t, rank); dist.isend(t, rank); work.wait()
page = hook.page()
def wait():  # gloo has no path to oneself: what a receive does to the marks is enough here
    assert hook.begin(); hook.end()
counts = []
for optimizer in (before, after, own, around):
    wait(); result = optimizer.step(); counts.append(page.iteration)
    if optimizer is own: assert result == "own"
wait(); before.step(); after.step(); counts.append(page.iteration)  # one iteration
before.step(); counts.append(page.iteration)                          # no wait in it: none
scheduler = torch.optim.lr_scheduler.StepLR(after, 1)
wait(); after.step(); scheduler.step(); counts.append(page.iteration)
wait(); freeride.iteration_end(); counts.append(page.iteration)
wait(); after.step(); counts.append(page.iteration)                   # explicit from now on
print(counts)
""",
        1,
        tmp_path,
    )
    (out, err), code = finish(ranks)[0]
    assert code == 0, err
    assert out == "[1, 2, 3, 4, 5, 5, 6, 7, 7]\n", err


SKIPS = (
    INIT
    + """
import json, time, freeride
from freeride import pages
from freeride._hook import hook
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other, skipped, left = 1 - rank, SKIPPED, LEFT
def send(count, number):
    for work in [dist.isend(torch.full((2,), float(number)), other) for _ in range(count)]: work.wait()
def receive(count):
    into = torch.zeros(2)
    for _ in range(count): dist.irecv(into, other).wait()
    return int(into[0])
iteration = 0
while left > 0:
    # As rank 0 says; it counts from when the other one follows it, if that is to be.
    if rank == 0:
        time.sleep(0.03 * (not UNLESS))
        send(3, left)
        left -= receive(3)
    else:
        left, counts = receive(3), UNLESS or hook._agreement.follows is not None
        send(3, counts)
        left -= counts
    if rank == 0 or not skipped(iteration): STEP
    iteration += 1
page = hook.page()
waits = {}
for _, bubble in pages.finished_bubbles(type("Shown", (), {"view": page})):
    number = pages.state_iteration(bubble.state_word)
    waits[number] = waits.get(number, 0) + 1
dist.barrier()
print(json.dumps([freeride.state(), page.iteration, waits, iteration]))
"""
)
SCALER = """
import collections
from torch.cuda.amp import grad_scaler
class Scaler(grad_scaler.GradScaler):  # as it is, where a GPU finds what is not finite
    def __init__(self):
        self._enabled = True
        self._per_optimizer_states = collections.defaultdict(grad_scaler._refresh_per_optimizer_state)
    def _check_scale_growth_tracker(self, name): pass
    def unscale_(self, optimizer):
        infinite = torch.tensor(float(rank == 1 and iteration % 3 < 2))
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {0: infinite}
scaler = Scaler()
"""


def skipping(tmp_path, skipped, left=20, follows=False, step="optimizer.step()", before=""):
    """What both ranks have said, and the iterations that each has counted and marked waits in. The second one makes no step where `skipped`;
    there are `left` iterations, or if it is to follow the other one, so many from then on."""
    code = SKIPS.replace("SKIPPED", f"lambda iteration: {skipped}").replace("STEP", step)
    code = code.replace("LEFT", str(left)).replace("UNLESS", str(not follows))
    ranks = finish(world(before + code, 2, tmp_path))
    assert [code for _, code in ranks] == [0, 0], ranks
    found = [json.loads(out.splitlines()[-1]) for (out, _), _ in ranks]
    said = [[line for line in err.splitlines() if line.startswith("freeride: ")] for (_, err), _ in ranks]
    return found, said


def test_a_rank_that_skips_optimizer_steps_counts_the_same_iterations(tmp_path):
    found, said = skipping(tmp_path, "iteration in (9, 12, 13, 14)")
    assert found == [["active", 20, {str(number): 3 for number in range(20)}, 20]] * 2
    assert said[0] == [] and len(said[1]) == 1 and "has made no step in an iteration" in said[1][0]


@pytest.mark.parametrize("skipped", ["True", "iteration % 2"])
def test_a_rank_that_ends_fewer_iterations_follows_the_one_that_it_exchanges_messages_with(tmp_path, skipped):
    """A stage with nothing to train has no optimizer; and from the first iteration on steps are left out."""
    found, said = skipping(tmp_path, skipped, left=12, follows=True)
    (_, first, _, all_of_them), (state, second, waits, _) = found
    assert state == "active" and first == all_of_them
    assert second == first - 1  # the last one ends with the first message after it
    assert [waits[str(number)] for number in range(second - 8, second)] == [3] * 8
    assert said[0] == [] and sum("they end with those of rank 0" in line for line in said[1]) == 1


def test_a_step_that_a_gradient_scaler_leaves_out_ends_an_iteration(tmp_path):
    """From the first iteration on, in which nothing is regular so far."""
    step = "scaler._per_optimizer_states.clear(); scaler.step(optimizer)"
    found, said = skipping(tmp_path, "False", step=step, before=SCALER)
    assert found == [["active", 20, {str(number): 3 for number in range(20)}, 20]] * 2
    assert said == [[], []]


@pytest.mark.parametrize(
    "where",
    [
        "hook.library.mark_begin",
        "hook.library.mark_end",
        "hook.library.count_iterations",
        "hook.marker._keep",
        "hook.pipelines.receives",
    ],
)
def test_errors_in_the_hook_switch_it_off_and_calls_happen_once(tmp_path, where):
    ranks = world(
        INIT
        + f"""
import freeride
from freeride._hook import hook
from torch._C import _distributed_c10d as native
def broken(*_): raise ValueError("on purpose")
{where} = broken
t = torch.zeros(1)
for number in range(3):
    if rank == 0: dist.send(torch.full((1,), float(number)), 1)
    else: dist.recv(t, 0); assert t.item() == number
    freeride.iteration_end()
print(freeride.state(), freeride.enable())
""",
        2,
        tmp_path,
    )
    (out, err), code = finish(ranks)[1]
    assert code == 0, err
    assert out == "disabled False\n"
    assert err.count("freeride: the hook is switched off: ValueError: on purpose") == 1


DETACH = """
import freeride, json
from torch._C import _distributed_c10d as native
import torch.distributed.distributed_c10d as c10d
METHODS = ("send", "recv", "recv_anysource", "broadcast", "allreduce", "reduce", "barrier")
def functions():
    found = {"wait": vars(native.Work)["wait"], "init": (dist.init_process_group, c10d.init_process_group),
             "batch": (dist.batch_isend_irecv, c10d.batch_isend_irecv), "optimizer": torch.optim.Optimizer.__init__, "step": torch.optim.SGD.step}
    return {**found, **{name: vars(native.ProcessGroup)[name] for name in METHODS}}
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)  # torch wraps its step by itself, with the first one
before = functions()
from freeride._hook import hook
t, marked = torch.zeros(1), []
def iterate():
    if rank == 0: dist.send(t, 1)
    else: dist.recv(t, 0)
    marked.append(hook.waits)
    optimizer.step()
"""


def test_detach_puts_torchs_functions_back_and_attach_wraps_them_once_more(tmp_path):
    ranks = world(
        DETACH
        + "freeride.attach()\n"
        + INIT
        + """
assert functions()["wait"] is not before["wait"]
freeride.attach(); iterate()
freeride.detach()
assert functions() == before, [name for name, function in functions().items() if function != before[name]]
iterate(); freeride.attach(job="again"); iterate()
once = functions()
freeride.detach(); freeride.attach(job="and again"); iterate()
print(marked, freeride.state(), all(functions()[name] is not before[name] for name in ("wait", "recv")))
""",
        2,
        tmp_path,
        hooked=False,
    )
    (out, err), code = finish(ranks)[1]
    assert code == 0, err
    assert out == "[1, 0, 1, 1] active True\n" and "freeride" not in err


def test_what_somebody_else_has_wrapped_since_stays_and_marks_once(tmp_path):
    ranks = world(
        DETACH
        + "freeride.attach()\n"
        + INIT
        + """
ours, seen = native.Work.wait, []
def theirs(work, *args, **kwargs):
    seen.append(1)
    return ours(work, *args, **kwargs)
native.Work.wait = theirs
iterate(); freeride.detach()
assert vars(native.Work)["wait"] is theirs
iterate(); freeride.attach(); iterate()
assert vars(native.Work)["wait"] is theirs
print(marked, len(seen))
""",
        2,
        tmp_path,
        hooked=False,
    )
    (out, err), code = finish(ranks)[1]
    assert code == 0, err
    assert out == "[1, 0, 1] 3\n" and "freeride" not in err


def test_disable_and_enable_while_running(tmp_path):
    ranks = world(
        INIT
        + """
import freeride
t = torch.zeros(1)
def iterate():
    if rank == 0: dist.send(t, 1)
    else: dist.recv(t, 0)
    freeride.iteration_end()
states = []
iterate(); states.append(freeride.state())
freeride.disable("lunch"); iterate(); states.append(freeride.state())
assert freeride.enable(); iterate(); states.append(freeride.state())
print(*states)
""",
        2,
        tmp_path,
    )
    (out, err), code = finish(ranks)[1]
    assert code == 0, err
    assert out == "active disabled active\n"
    assert "lunch" in err


def test_forked_data_loader_leaves_the_page_alone(tmp_path):
    ranks = world(
        INIT
        + """
import freeride
from freeride._hook import hook
page = hook.page()
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        hook.begin(); freeride.iteration_end(); freeride.disable("in a loader"); freeride.detach()
        return torch.tensor([i])
hook.begin()
before = (page.state_word, page.wake, page.iteration)
items = sorted(int(x) for batch in torch.utils.data.DataLoader(Data(), num_workers=2) for x in batch)
assert items == list(range(8))
assert (page.state_word, page.wake, page.iteration) == before
hook.end()
print(freeride.state())
""",
        1,
        tmp_path,
    )
    (out, err), code = finish(ranks)[0]
    assert code == 0, err
    assert out == "starting\n" and "freeride" not in err


def test_rank_killed_in_a_bubble(tmp_path):
    worker = Worker(tmp_path, "cpu-1")
    ranks = world(
        INIT
        + """
import time
if rank == 0: time.sleep(1000)
dist.recv(torch.zeros(1), 0)
""",
        2,
        tmp_path,
    )
    page = worker.take()
    while page.view.state_word == 0:
        pages.futex_wait(page, "wake", page.view.wake, timeout=0.1)
    ranks[1].kill()
    assert worker.wait_gone()
    assert pages.state_wait(page.view.state_word) == 1  # nobody was left to clear it: the connection's end is the sign
    ranks[0].kill()
    finish(ranks)
    worker.close()


def test_exceptions_of_the_script_are_its_own(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("raise KeyError('mine')\n")
    done = python(
        "import sys, runpy\nsys.argv = ['freeride.run', sys.argv[1]]\nrunpy.run_module('freeride.run', run_name='__main__')\n",
        script,
        run_dir=tmp_path,
    )
    assert done.returncode == 1 and "KeyError: 'mine'" in done.stderr
    assert os.path.exists(script)
