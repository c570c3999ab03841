"""Idle phases from Python: blocks, functions and pairs, with torch or without, and what becomes of wrong use."""

import json
import subprocess
import sys
import types

import pytest

from freeride import _found
from support import BUILD, WATCHDOG, environment, finish, python, world

# told(): what is on this process' page, as its worker would see it.
PRELUDE = """
import json, os, sys, threading, time
import freeride
from freeride import pages
from freeride._hook import hook

def told():
    page = hook.page()
    if page is None:
        return print(json.dumps(None), flush=True)
    ended = []
    for number in range(max(0, page.bubbles - pages.HISTORY), page.bubbles):
        wait = pages.state_wait(page.history[number % pages.HISTORY].state_word)
        if wait >= pages.phase_wait(0):
            ended.append(page.phases[wait - pages.phase_wait(0)].name.decode())
    under_way = pages.phase_number(page.idle_begun) > page.idle_ended
    place = [page.rank, page.stage, page.stages, page.replica, page.replicas]
    print(json.dumps(dict(ended=ended, under_way=under_way, place=place, device=page.device.decode(), job=page.job.decode(),
                          iterations=page.iteration, framework=page.framework.decode(),
                          expected_ns=page.idle_expected_ns, open=page.idle_flags)), flush=True)
"""
TORCH = "import torch, torch.distributed as dist\n"


def run(tmp_path, code, **env):
    """(what told() has said, each time; the lines of ours on stderr; the finished process)"""
    done = python(PRELUDE + code, run_dir=tmp_path, **env)
    lines = [line for line in done.stderr.splitlines() if line.startswith("freeride: ")]
    return [json.loads(line) for line in done.stdout.splitlines()], lines, done


def good(tmp_path, code, **env):
    """The same of a process that ends well."""
    said, lines, done = run(tmp_path, code, **env)
    assert done.returncode == 0, done.stderr
    return said, lines


# ---- what it is for ----------------------------------------------------------------------------------------------------------------


def test_a_block_a_function_and_a_pair_in_a_process_without_torch(tmp_path):
    said, lines = good(
        tmp_path,
        """
with freeride.idle("rollout", seconds=2.5):
    told()

@freeride.idle("eval", open=True)
def evaluate(x, *, more):
    "Its words."
    told()
    return x + more
assert evaluate(1, more=2) == 3 and evaluate.__doc__ == "Its words."

import asyncio
@freeride.idle("serve")
async def serve(x):
    await asyncio.sleep(0)
    return x
assert asyncio.run(serve(5)) == 5

freeride.idle_begin("save")
told()
freeride.idle_end()
told()
assert "torch" not in sys.modules
""",
        FREERIDE_JOB="job",
    )
    assert lines == []
    assert [one["under_way"] for one in said] == [True, True, True, False]
    assert (said[0]["expected_ns"], said[1]["expected_ns"], said[1]["open"]) == (2_500_000_000, 0, 1)
    last = said[-1]
    assert last["ended"] == ["rollout", "eval", "serve", "save"]
    assert (last["place"], last["device"], last["job"]) == ([0, 0, 1, 0, 1], "cpu-0", "job")
    assert last["framework"] == "python"


@pytest.mark.parametrize(
    "env, place, device",
    [
        ({"RANK": 2, "WORLD_SIZE": 4, "LOCAL_RANK": 1}, [2, 0, 1, 2, 4], "cpu-1"),
        ({"SLURM_PROCID": 3, "SLURM_STEP_NUM_TASKS": 8, "SLURM_LOCALID": 0}, [3, 0, 1, 3, 8], "cpu-0"),
        ({"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2}, [1, 0, 1, 1, 2], "cpu-1"),
        ({"PMI_RANK": 0, "PMI_SIZE": 2, "FREERIDE_DEVICE": "cpu-7"}, [0, 0, 1, 0, 2], "cpu-7"),
        ({"RANK": 4, "WORLD_SIZE": 4}, [0, 0, 1, 0, 1], "cpu-0"),  # a pod's number
        ({"FREERIDE_DEVICE": "GPU-1"}, [0, 0, 1, 0, 1], "GPU-1"),  # as with JAX: the host marks
    ],
)
def test_a_rank_is_who_its_launcher_says(tmp_path, env, place, device):
    said, lines = good(tmp_path, 'with freeride.idle("rollout"): pass\ntold()\n', **env)
    assert (said[0]["place"], said[0]["device"], lines) == (place, device, [])


def test_each_begin_of_the_first_name_ends_an_iteration(tmp_path):
    said, _ = good(
        tmp_path,
        'for _ in range(5):\n    with freeride.idle("rollout"): pass\n    with freeride.idle("save"): pass\ntold()\n',
    )
    assert said[0]["iterations"] == 5 and said[0]["ended"] == ["rollout", "save"] * 5


def test_an_iteration_that_the_script_ends_goes_before(tmp_path):
    said, _ = good(
        tmp_path, 'for _ in range(3):\n    with freeride.idle("rollout"): pass\n    freeride.iteration_end()\ntold()\n'
    )
    assert said[0]["iterations"] == 4  # the first phase has ended one, since nobody had so far


def test_data_parallel_ranks_are_replicas_of_one_stage(tmp_path):
    """Also where a phase came before the default group: then the rank's place was the launcher's word."""
    code = (
        PRELUDE
        + """
with freeride.idle("start"):
    pass
told()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    with freeride.idle("rollout"):
        pass
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
told()
"""
    )
    for rank, (out, ended) in enumerate(finish(world(code, 2, tmp_path, hooked=False, FREERIDE_JOB="ddp"))):
        assert ended == 0, out
        before, after = map(json.loads, out[0].splitlines())
        assert out[1] == ""
        assert before["place"] == after["place"] == [rank, 0, 1, rank, 2]
        assert after["ended"] == ["rollout"] * 3


PIPELINE = """
def message():
    tensor = torch.zeros(1)
    if rank == 0:
        dist.recv(tensor, 1)
    else:
        dist.send(tensor, 0)
parameter = torch.nn.Parameter(torch.zeros(1))
parameter.grad = torch.ones(1)
optimizer = torch.optim.SGD([parameter], lr=0.1)
"""


def test_a_pipelines_message_gives_a_rank_its_place(tmp_path):
    code = (
        PRELUDE
        + """
dist.init_process_group("gloo")
with freeride.idle("start"):
    pass
told()
"""
        + PIPELINE
        + """
for _ in range(2):
    message()
    optimizer.step()
    with freeride.idle("save"):
        told()
"""
    )
    for rank, (out, ended) in enumerate(finish(world(code, 2, tmp_path, hooked=False))):
        assert ended == 0, out
        said = list(map(json.loads, out[0].splitlines()))
        assert out[1] == ""
        assert [one["place"] for one in said] == [[rank, 0, 1, rank, 2], *[[rank, rank, 2, 0, 1]] * 2]
        assert said[-1]["ended"] == ["save"] and said[-1]["under_way"]
        assert said[0]["job"] == said[-1]["job"]


def test_attach_and_run_find_the_pipeline_as_ever(tmp_path):
    """attach() before the group, after it, and after a phase; and freeride.run, where a framework may tell."""
    for hooked, before, after in (
        (True, "", ""),
        (False, "freeride.attach()\n", ""),
        (False, "", "freeride.attach()\n"),
        (False, 'freeride.idle_begin("load"); freeride.idle_end()\nfreeride.attach()\n', ""),
        (False, "", 'freeride.idle_begin("load"); freeride.idle_end()\nfreeride.attach()\n'),
    ):
        code = PRELUDE + before + 'dist.init_process_group("gloo")\n' + after + PIPELINE
        code += 'message()\noptimizer.step()\nwith freeride.idle("save"): pass\ntold()\n'
        for rank, (out, ended) in enumerate(finish(world(code, 2, tmp_path, hooked=hooked))):
            assert ended == 0, out
            assert json.loads(out[0])["place"] == [rank, rank, 2, 0, 1], (hooked, before, after)
            assert json.loads(out[0])["ended"] == ["save"] and out[1] == ""


def test_switched_off_it_does_nothing(tmp_path):
    said, lines = good(
        tmp_path,
        """
def function(): pass
assert freeride.idle("x")(function) is function
with freeride.idle("x"):
    freeride.idle_end()
freeride.idle_begin("x")
freeride.idle_begin("x")
assert hook.library is None and freeride.state() == "off"
""",
        FREERIDE_HOOK="0",
    )
    assert said == [] and lines == []


@pytest.mark.parametrize(
    "env", [{"FREERIDE_HOOK_LIBRARY": "/nowhere.so"}, {"FREERIDE_DEVICE": "../x"}, {"FREERIDE_STAGE": "7"}]
)
def test_what_cannot_attach_says_so_once_and_goes_on(tmp_path, env):
    said, lines = good(
        tmp_path,
        'for _ in range(3):\n    with freeride.idle("x"): pass\nfreeride.idle_begin("y")\nfreeride.idle_end()\ntold()\n',
        **env,
    )
    assert said == [None] and len(lines) == 1, lines


def test_after_detach_there_are_none(tmp_path):
    said, lines = good(tmp_path, 'with freeride.idle("x"): freeride.detach()\nwith freeride.idle("x"): told()\n')
    assert said == [None] and lines == []


# ---- wrong use: one line, and no phase that lasts for longer -------------------------------------------------------------------------


def test_a_phase_inside_of_another_is_part_of_it(tmp_path):
    said, lines = good(
        tmp_path,
        """
for _ in range(2):
    with freeride.idle("outer"):
        freeride.idle_begin("inner")
        freeride.idle_end()
        told()
told()
""",
    )
    assert [one["under_way"] for one in said] == [True, True, False]
    assert said[-1]["ended"] == ["outer", "outer"]
    assert len(lines) == 1 and 'begins within "outer"' in lines[0]


def test_a_phase_of_two_threads_ends_with_the_first(tmp_path):
    said, lines = good(
        tmp_path,
        """
begun, over = threading.Event(), threading.Event()
def other():
    with freeride.idle("theirs"):
        begun.set()
        over.wait()
with freeride.idle("mine"):
    thread = threading.Thread(target=other)
    thread.start()
    begun.wait()
told()
over.set()
thread.join()
with freeride.idle("mine"):
    pass
told()
""",
    )
    assert [one["under_way"] for one in said] == [False, False]
    assert said[-1]["ended"] == ["mine", "mine"] and len(lines) == 1 and 'within "mine"' in lines[0]


def test_ended_by_another_thread(tmp_path):
    said, lines = good(
        tmp_path,
        """
freeride.idle_begin("x")
thread = threading.Thread(target=freeride.idle_end)
thread.start()
thread.join()
told()
""",
    )
    assert not said[0]["under_way"] and said[0]["ended"] == ["x"]
    assert lines == ['freeride: idle_end() in another thread than idle_begin("x"): the phase ends']


def test_an_end_without_a_begin(tmp_path):
    said, lines = good(
        tmp_path,
        'for _ in range(2): freeride.idle_end()\nwith freeride.idle("x"):\n    freeride.idle_end()\n    told()\n',
    )
    assert not said[0]["under_way"]
    assert lines == [
        "freeride: idle_end() without idle_begin(): there is no phase to end",
        'freeride: idle_end() without idle_begin(): phase "x", which its block would end, ends',
    ]


def test_a_begin_without_an_end(tmp_path):
    said, lines = good(
        tmp_path, 'for _ in range(3):\n    freeride.idle_begin("x")\n    told()\nfreeride.idle_end()\ntold()\n'
    )
    assert [one["under_way"] for one in said] == [True, False, False, False] and said[-1]["ended"] == ["x"]
    assert len(lines) == 1 and 'idle_begin("x") again without idle_end()' in lines[0]


def test_never_ended_it_ends_with_the_process(tmp_path):
    _, lines = good(tmp_path, 'freeride.idle_begin("x")\n')
    assert lines == ['freeride: phase "x" was never ended: it ends with the process']


def test_an_iterations_end_ends_it(tmp_path):
    said, lines = good(
        tmp_path,
        'for _ in range(2):\n    freeride.idle_begin("x")\n    freeride.iteration_end()\n    told()\n    freeride.idle_end()\n',
    )
    assert [one["under_way"] for one in said] == [False, False] and len(lines) == 1 and '"x"' in lines[0]


@pytest.mark.parametrize("first", ["", TORCH])
def test_an_optimizers_step_ends_it(tmp_path, first):
    """Whether torch was imported before the first phase or after it."""
    said, lines = good(
        tmp_path,
        first
        + """
with freeride.idle("x"): pass
import torch
parameter = torch.nn.Parameter(torch.zeros(1))
parameter.grad = torch.ones(1)
optimizer = torch.optim.SGD([parameter], lr=0.1)
with freeride.idle("x"):
    optimizer.step()
    told()
    parameter.grad = None
""",
    )
    assert not said[0]["under_way"] and len(lines) == 1 and "an optimizer made its step" in lines[0]


def test_an_exception_ends_it_and_goes_on(tmp_path):
    said, lines = good(
        tmp_path,
        """
@freeride.idle("f")
def function():
    raise KeyError("theirs")
for call in (function, lambda: freeride.idle("x").__enter__() and 1 / 0):
    pass
try:
    function()
except KeyError as error:
    assert error.args == ("theirs",) and error.__context__ is None
try:
    with freeride.idle("x"):
        1 / 0
except ZeroDivisionError:
    told()
""",
    )
    assert not said[0]["under_way"] and said[0]["ended"] == ["f", "x"] and lines == []


def test_a_forked_child_does_nothing(tmp_path):
    """Neither in the phase in which it was forked, nor by itself; its parent's phase goes on."""
    said, lines = good(
        tmp_path,
        """
freeride.idle_begin("x")
child = os.fork()
if child == 0:
    freeride.idle_end()
    with freeride.idle("y"): pass
    freeride.idle_begin("z")
    freeride.idle_end()
    told()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
told()
freeride.idle_end()
with freeride.idle("x"):
    child = os.fork()
    if child == 0:
        sys.exit(0)      # through the block's end
    os.waitpid(child, 0)
    told()
""",
    )
    assert said[0] is None and said[1]["under_way"] and said[1]["ended"] == []
    assert said[2]["under_way"] and said[2]["ended"] == ["x"]
    assert len(lines) == 1 and "has to end it" in lines[0], lines


def test_a_started_process_of_a_rank_marks_nothing_and_says_so(tmp_path):
    said, lines = good(
        tmp_path,
        """
import subprocess
with freeride.idle("x"): pass
code = "import freeride\\nfor _ in range(2):\\n    with freeride.idle('y'): print(freeride.state())"
assert subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.split() == ["off", "off"]
told()
""",
    )
    assert said[0]["ended"] == ["x"] and len(lines) == 1 and "has started it" in lines[0]


def test_names_and_lengths_that_make_no_sense(tmp_path):
    said, lines = good(
        tmp_path,
        """
for seconds in (-1, float("nan"), "soon", 0, 1e30):
    with freeride.idle("x", seconds=seconds):
        assert hook.page().idle_expected_ns == 0
for name in ("", "n" * 32, "a\\nb", None, 7, "\\udc00"):
    with freeride.idle(name): pass
for number in range(40):
    with freeride.idle(f"name {number}"): pass
@freeride.idle("g")
def generator():
    yield 1
assert list(generator()) == [1]
told()
""",
    )
    assert len(said[0]["ended"]) <= 5 + 2 + 40 and not said[0]["under_way"]
    assert len(set(said[0]["ended"])) == 16
    assert any("a generator" in line for line in lines) and any("a phase of -1 s" in line for line in lines)


def test_an_error_of_ours_is_not_the_trainings(tmp_path):
    said, lines = good(
        tmp_path,
        """
with freeride.idle("x"): pass
def broken(*_):
    raise OSError("ours")
hook.library.idle_begin = broken
for _ in range(3):
    with freeride.idle("x"): pass
print(json.dumps(freeride.state()))
""",
    )
    assert said == ["disabled"] and len(lines) == 1 and "OSError: ours" in lines[0]


SAVES = (
    TORCH
    + """
import io
original = torch.save
state = {"weight": torch.arange(2_000_000.0), "small": [torch.ones(3) for _ in range(4)]}
freeride.attach()
def saved(save):
    file = io.BytesIO()
    assert save(state, file) is None
    return file.getvalue()
assert saved(torch.save) == saved(original)
"""
)


# ---- on a GPU, which a driver plays -----------------------------------------------------------------------------------------------

FAKE = (
    f"""
import contextlib, ctypes
fake = ctypes.CDLL("{BUILD / "fake-cuda/libcuda.so.1"}", mode=ctypes.RTLD_GLOBAL)
"""
    + """
fake.fake_cuda_stream.restype = ctypes.c_void_p
fake.fake_cuda_synchronize.argtypes = [ctypes.c_void_p]
from freeride import _cuda
class FakeGpu(_cuda.Gpu):
    used, of_torch = False, fake.fake_cuda_stream()
    context = staticmethod(lambda device: contextlib.nullcontext())
    stream = staticmethod(lambda device: FakeGpu.of_torch)
    current = staticmethod(lambda: 0 if FakeGpu.used else None)
    expected = staticmethod(lambda: True)
hook.gpu = FakeGpu()
def until(condition):
    while not condition():
        time.sleep(0.001)
def begun():
    return pages.phase_number(hook.page().idle_begun)
"""
)


def test_a_phase_begins_when_the_stream_comes_to_it(tmp_path):
    said, lines = good(
        tmp_path,
        FAKE
        + """
FakeGpu.used = True
release = threading.Event()
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: release.wait() and None)
fake.fake_cuda_run.argtypes = [ctypes.c_void_p, type(function), ctypes.c_void_p]
fake.fake_cuda_run(FakeGpu.of_torch, function, None)
freeride.idle_begin("rollout")
assert begun() == 0                        # training's work is still to be done
release.set()
until(begun)
told()
freeride.idle_end()

release.clear()
fake.fake_cuda_run(FakeGpu.of_torch, function, None)
with freeride.idle("rollout"):
    pass                                   # over before the GPU has come to it: that was none
release.set()
fake.fake_cuda_synchronize(FakeGpu.of_torch)
other = threading.Thread(target=freeride.idle_begin, args=("save",))
other.start(); other.join()
until(lambda: begun() == 3)
freeride.idle_end()
freeride.iteration_end()
told()
""",
    )
    assert said[0]["under_way"] and said[0]["device"].startswith("GPU-")
    assert said[1]["ended"] == ["rollout", "save"] and not said[1]["under_way"]
    assert len(lines) == 1 and "idle_end() in another thread" in lines[0]


def test_a_phase_in_the_capture_of_a_graph_is_left_out(tmp_path):
    said, lines = good(
        tmp_path,
        FAKE
        + """
FakeGpu.used = True
fake.fake_cuda_capture.argtypes = [ctypes.c_void_p, ctypes.c_int]
with freeride.idle("rollout"):
    until(begun)
fake.fake_cuda_capture(FakeGpu.of_torch, 1)
with freeride.idle("rollout"): pass
fake.fake_cuda_capture(FakeGpu.of_torch, 0)
with freeride.idle("rollout"):
    until(lambda: begun() == 2)
told()
""",
    )
    assert said[0]["ended"] == ["rollout"] * 2 and len(lines) == 1 and "capture of a CUDA graph" in lines[0]


def test_before_training_uses_its_gpu_a_phase_is_not_marked_and_said_so_once(tmp_path):
    said, lines = good(
        tmp_path,
        FAKE
        + """
for _ in range(2):
    with freeride.idle("load"): pass
told()
FakeGpu.used = True
with freeride.idle("rollout"):
    until(begun)
told()
""",
    )
    assert said[0] is None and said[1]["ended"] == ["rollout"]
    assert len(lines) == 1 and 'phase "load" is not marked' in lines[0] and "FREERIDE_DEVICE" in lines[0]


@pytest.mark.parametrize("idle, count", [({}, 1), ({"FREERIDE_IDLE": "loader"}, None)])
def test_on_a_gpu_saves_are_found_without_being_asked_for(tmp_path, idle, count):
    """How many were begun: whether the played GPU comes to one before it is over, nobody knows."""
    said, lines = good(
        tmp_path,
        FAKE
        + "FakeGpu.used = True\n"
        + SAVES
        + "print(hook.page() and pages.phase_number(hook.page().idle_marked) or 'null')\n",
        **idle,
    )
    assert said == [count] and lines == []


# ---- found without a word ------------------------------------------------------------------------------------------------------------


def test_which_phases_are_looked_for():
    said = []
    assert _found.wanted(None, said.append) == ({"save", "loader"}, True)
    assert _found.wanted("0", said.append) == (set(), False)
    assert _found.wanted("all", said.append) == ({"save", "loader"}, False)
    assert _found.wanted("save", said.append) == ({"save"}, False)
    assert said == []
    assert _found.wanted("save, eval", said.append) == ({"save"}, False)
    assert len(said) == 1 and "eval" in said[0]


@pytest.mark.parametrize("env, ended", [({"FREERIDE_IDLE": "save"}, ["save"]), ({"FREERIDE_IDLE": "all"}, ["save"])])
def test_what_is_saved_is_the_same_and_a_phase(tmp_path, env, ended):
    said, lines = good(
        tmp_path,
        SAVES
        + """
told()
class Odd:
    def __reduce__(self):
        raise KeyError("theirs")
try:
    torch.save([state, Odd()], io.BytesIO())
except KeyError as error:
    assert error.args == ("theirs",)
told()
thread = threading.Thread(target=saved, args=(torch.save,))   # as an asynchronous checkpoint does: training goes on
thread.start(); thread.join()
told()
wrapped = torch.save
freeride.detach()
assert torch.save is torch.serialization.save is original and wrapped is not original
assert "cpu" in vars(torch.storage._StorageBase) and "copy_" not in vars(torch.storage.UntypedStorage)
saved(wrapped)
""",
        **env,
    )
    assert [one["ended"] for one in said] == [ended] * 3 and lines == []
    assert not any(one["under_way"] for one in said)


@pytest.mark.parametrize("env", [{}, {"FREERIDE_IDLE": "0"}, {"FREERIDE_IDLE": "loader"}])
def test_on_a_cpu_nothing_is_found_that_was_not_asked_for(tmp_path, env):
    said, lines = good(tmp_path, SAVES + "told()\n", **env)
    assert said == [None] and lines == []


def test_an_error_while_looking_at_a_save_does_not_reach_it(tmp_path):
    said, lines = good(
        tmp_path,
        SAVES
        + """
from freeride import _found
def broken(*_):
    raise OSError("ours")
_found._Saving.before_record = broken
assert saved(torch.save) == saved(original)
print(json.dumps(freeride.state()))
""",
        FREERIDE_IDLE="save",
    )
    assert said == ["disabled"] and len(lines) == 1 and "OSError: ours" in lines[0]


def test_a_save_in_a_phase_of_the_trainings_is_part_of_it(tmp_path):
    said, lines = good(
        tmp_path, SAVES + 'with freeride.idle("mine"): saved(torch.save)\ntold()\n', FREERIDE_IDLE="save"
    )
    assert said[0]["ended"] == ["save", "mine"] and lines == []


def test_while_a_tensor_is_copied_from_the_gpu_there_is_no_phase():
    """The calls as torch.save() makes them, of storages that are said to be on a GPU."""
    from freeride._found import _LARGE, _Saving

    class Phases:
        calls = []

        def begin(self, name, found):
            self.calls.append(("begin", name, found))
            return self

        def end(self, _):
            self.calls.append("end")

    here, gpu = [types.SimpleNamespace(device=types.SimpleNamespace(type=kind)) for kind in ("cpu", "cuda")]
    saving = _Saving(Phases())
    begin = ("begin", "save", True)
    saving.before_record(100)  # the pickle
    saving.before_copy(here, gpu)
    saving.before_record(_LARGE - 1)
    saving.before_copy(here, gpu)
    assert Phases.calls == []
    saving.before_record(_LARGE)
    assert Phases.calls == [begin]
    saving.before_copy(here, gpu)
    assert Phases.calls == [begin, "end"]
    saving.before_record(1)
    saving.before_record(1)  # of tensors that are in host memory already
    saving.before_copy(here, here)
    saving.end()
    assert Phases.calls == [begin, "end", begin, "end"]


LOADER = (
    TORCH
    + """
freeride.attach()
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, at):
        time.sleep(0.02)
        return torch.tensor(at)
def batches(workers):
    return [int(batch) for batch in torch.utils.data.DataLoader(Slow(), num_workers=workers)]
"""
)


def test_a_loader_that_stalls_is_a_phase_from_its_second_wait_on(tmp_path):
    said, lines = good(tmp_path, LOADER + "assert batches(1) == list(range(8))\ntold()\n", FREERIDE_IDLE="loader")
    assert set(said[0]["ended"]) == {"loader"} and len(said[0]["ended"]) == 8 and lines == []  # the last finds the end


def test_a_loader_that_never_stalls_costs_no_mark(tmp_path):
    said, lines = good(
        tmp_path,
        LOADER
        + """
import freeride._found
freeride._found._LONG_NS = 1 << 62
batches(1)
told()
""",
        FREERIDE_IDLE="loader",
    )
    assert said == [None] and lines == []


def test_what_a_loader_makes_in_this_process_is_marked_where_it_is_asked_for(tmp_path):
    said, _ = good(tmp_path, LOADER + "assert batches(0) == list(range(8))\ntold()\n", FREERIDE_IDLE="all")
    assert said[0]["ended"] == ["loader"] * 8


def test_run_finds_saves_in_a_script_that_knows_nothing_of_us(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from torch import save\nimport torch, io, sys\n"
        "save({'w': torch.ones(2_000_000)}, io.BytesIO())\nfrom freeride._hook import hook\n"
        "print(hook.page().phases[0].name.decode(), hook.page().phases[0].count)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "freeride.run", script],
        env=environment(tmp_path, FREERIDE_IDLE="save"),
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("save 1\n", "", 0)


# ---- found by taking it apart -------------------------------------------------------------------------------------------------------


def test_steps_that_have_ended_iterations_go_on_to(tmp_path):
    """Phases were only found at first, as a loader's, and training marks its own later, as of an evaluation."""
    said, lines = good(
        tmp_path,
        TORCH
        + """
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
def step():
    parameter.grad = torch.ones(1)
    optimizer.step()
def found():
    hook.phases.end(hook.phases.begin("loader", found=True))
found(); step(); step(); told()
with freeride.idle("eval"): pass
found(); step(); step(); told()
""",
        FREERIDE_IDLE="all",
    )
    assert [one["iterations"] for one in said] == [2, 4] and lines == []


def test_found_phases_of_an_attached_rank_without_a_pipeline_are_used(tmp_path):
    said, lines = good(
        tmp_path,
        TORCH
        + """
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
freeride.attach()
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for _ in range(3):
    hook.phases.end(hook.phases.begin("save", found=True))
    parameter.grad = torch.ones(1)
    optimizer.step()
told()
print(json.dumps(freeride.state()))
""",
        FREERIDE_IDLE="all",
    )
    assert said[0]["iterations"] == 3 and said[1] == "active" and lines == []


def test_however_many_threads_begin_one_its_end_ends_it(tmp_path):
    said, _ = good(
        tmp_path,
        """
all_begun = threading.Barrier(1100)
def rollout():
    freeride.idle_begin("rollout")
    all_begun.wait()
    freeride.idle_end()
threading.stack_size(64 << 10)
threads = [threading.Thread(target=rollout) for _ in range(1100)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
told()
assert len(hook.phases._begun) <= 1024
""",
    )
    assert said[0]["ended"] == ["rollout"] and not said[0]["under_way"]


def test_an_optimizers_step_ends_what_was_begun_elsewhere(tmp_path):
    """In C++, or by a begin that an interruption cut short."""
    said, lines = good(
        tmp_path,
        TORCH
        + """
with freeride.idle("x"): pass
assert hook.library.idle_begin(hook.handle, b"elsewhere", 0, 0, None)
parameter = torch.nn.Parameter(torch.zeros(1))
parameter.grad = torch.ones(1)
torch.optim.SGD([parameter], lr=0.1).step()
told()
""",
    )
    assert said[0]["ended"] == ["x", "elsewhere"] and not said[0]["under_way"]
    assert len(lines) == 1 and "inside of a phase" in lines[0]


def test_phases_and_what_they_decorate_are_copied_and_sent(tmp_path):
    said, lines = good(
        tmp_path,
        """
import copy, pickle
phase = freeride.idle("x", seconds=2)
def function(): return 1
async def coroutine(): return 1
with phase:
    for other in (copy.deepcopy(phase), pickle.loads(pickle.dumps(phase))):
        assert other is not phase and other._what == phase._what
        with other: pass
        other.__exit__(None, None, None)
    told()
told()
for decorated in (phase(function), phase(coroutine)):     # by value, as cloudpickle does
    held = [cell.cell_contents for cell in decorated.__closure__]
    [pickle.dumps(one) for one in held if one not in (function, coroutine)]
""",
    )
    assert [one["ended"] for one in said] == [[], ["x"]] and said[0]["under_way"]
    assert len(lines) == 1 and "taken for part of it" in lines[0]


def test_a_message_that_a_rank_sends_ends_its_phase(tmp_path):
    code = PRELUDE + 'dist.init_process_group("gloo")\nfreeride.attach()\n' + PIPELINE
    code += """
message()
optimizer.step()
freeride.idle_begin("forgotten")
message()
told()
"""
    for out, ended in finish(world(code, 2, tmp_path, hooked=False)):
        assert ended == 0, out
        assert not json.loads(out[0])["under_way"] and "message of the pipeline" in out[1]


def test_an_optimizers_step_ends_a_phase_also_where_it_ends_no_iteration(tmp_path):
    said, lines = good(
        tmp_path,
        TORCH
        + """
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
freeride.attach(iterations="manual")
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
freeride.iteration_end()
with freeride.idle("x"):
    parameter.grad = torch.ones(1)
    optimizer.step()
    told()
""",
    )
    assert not said[0]["under_way"] and said[0]["iterations"] == 1
    assert len(lines) == 1 and "an optimizer made its step" in lines[0]


def test_a_step_that_is_captured_ends_no_iteration_and_switches_nothing_off(tmp_path):
    said, lines = good(
        tmp_path,
        FAKE
        + """
FakeGpu.used = True
fake.fake_cuda_capture.argtypes = [ctypes.c_void_p, ctypes.c_int]
def found():
    hook.phases.end(hook.phases.begin("save", found=True))
found()
fake.fake_cuda_capture(FakeGpu.of_torch, 1)
hook.iteration_end()
fake.fake_cuda_capture(FakeGpu.of_torch, 0)
print(json.dumps(freeride.state()))
found()
hook.iteration_end()
until(lambda: freeride.state() == "active")
told()
""",
    )
    assert said[0] == "starting" and said[1]["iterations"] == 1 and lines == []


def test_a_child_forked_while_another_thread_attaches_does_not_hang(tmp_path):
    said, lines = good(
        tmp_path,
        """
import signal
attaching, over = threading.Event(), threading.Event()
def attach():
    with hook._lock:
        attaching.set()
        over.wait()
thread = threading.Thread(target=attach)
thread.start()
attaching.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)                       # the watchdog
    with freeride.idle("x"): pass
    os._exit(0)
print(json.dumps(os.waitpid(child, 0)[1]), flush=True)
over.set()
thread.join()
""",
    )
    assert said == [0] and lines == []
