"""Who a rank is, when it attaches, and which processes are none: under launchers, and in scripts, that are not like ours."""

import subprocess
import sys

import pytest

from support import WATCHDOG, environment, finish, free_port, world

INIT = "dist.init_process_group('gloo')\n"

# A default group of one rank, through a file: what a launcher says decides nothing.
ALONE = """
import os, sys, tempfile
import torch, torch.distributed as dist
def alone():
    dist.init_process_group('gloo', init_method='file://' + tempfile.mktemp(), rank=0, world_size=1)
"""


def said(path, *arguments, run_dir, through=("-m", "freeride.run"), **env):
    """The lines of a script's standard output; and its standard error."""
    given = {name: value for name, value in environment(run_dir, **env).items() if value != "unset"}
    done = subprocess.run(
        [sys.executable, *through, path, *arguments],
        env=given,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_who_a_rank_is_as_launchers_tell_it(tmp_path):
    """Its place on the host by torch's launcher, Slurm's, Open MPI's or Intel's; its rank by torch, where RANK is a pod's."""
    script = tmp_path / "who.py"
    script.write_text(
        ALONE
        + """
import freeride
from freeride._hook import hook
for env in (
    {}, {'SLURM_LOCALID': '2'}, {'OMPI_COMM_WORLD_LOCAL_RANK': '3', 'MPI_LOCALRANKID': '9'}, {'MPI_LOCALRANKID': '4'},
    {'LOCAL_RANK': '1', 'SLURM_LOCALID': '2'}, {'RANK': '70', 'SLURM_LOCALID': ''},
    {'TORCHELASTIC_RUN_ID': 'chosen'}, {'TORCHELASTIC_RUN_ID': '01234567-89ab-4cde-8f01-23456789abcd'},
):
    os.environ.update(env)
    assert freeride.attach()
    alone()
    page = hook.page()
    print(page.rank, page.device.decode(), page.job.decode()[:15])
    dist.destroy_process_group()
    freeride.detach()
    for name in env: del os.environ[name]
"""
    )
    lines, err = said(script, run_dir=tmp_path, through=())
    assert [line.split()[:2] for line in lines] == [
        ["0", f"cpu-{local}"] for local in ("0", "2", "3", "4", "1", "0", "0", "0")
    ]
    # A run's name that torchrun has made up is the name of no job.
    assert [line.split()[2] for line in lines[-2:]] == ["chosen", "who.py-01234567"]
    assert "freeride: " not in err


def test_names_that_were_bound_before_the_hook_and_a_group_made_again_with_other_ranks(tmp_path):
    """Attaches at the first message that is met; in another group this rank has another place, and its messages are marked there."""
    ranks = world(
        """
from torch.distributed import init_process_group, destroy_process_group
import freeride
assert freeride.attach(iterations='manual')
from freeride._hook import hook
def use():
    for _ in range(2):
        if dist.get_rank() == 0: dist.send(torch.zeros(1), 1)
        else: dist.recv(torch.zeros(1), 0)
        freeride.iteration_end()
def show():
    page = hook.page()
    print(page.rank, page.stage, page.stages, page.waits, page.job.decode(), freeride.state())
init_process_group('gloo')
before = freeride.state()
use(); show()
print(before)
destroy_process_group()
os.environ['MASTER_PORT'] = os.environ['NEXT_PORT']
init_process_group('gloo', rank=1 - rank, world_size=2)
use(); show()
""",
        2,
        tmp_path,
        hooked=False,
        NEXT_PORT=free_port(),
        FREERIDE_JOB="job",
    )
    (first, second) = ((out, err) for (out, err), code in finish(ranks))
    assert first[0].splitlines() == ["0 0 2 0 job active", "waiting", "1 1 2 1 job active"], first
    assert second[0].splitlines() == ["1 1 2 1 job active", "waiting", "0 0 2 0 job active"], second
    assert "freeride: " not in first[1] + second[1]


def test_a_failed_hook_stays_off_in_the_next_group(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        ALONE
        + """
from freeride._hook import hook
for attempt in range(2):
    alone()
    hook.fail(RuntimeError('a test'))
    print(hook.state())
    dist.barrier()
    dist.destroy_process_group()
"""
    )
    lines, err = said(script, run_dir=tmp_path)
    assert lines == ["disabled", "disabled"]
    assert err.count("freeride: ") == 1


# Tells as DeepSpeed does, whose module is beside the script; the real frameworks are in frameworks/.
FRAMEWORK = """
import types
import deepspeed.runtime.pipe.p2p as module
from freeride._hook import hook
def pipeline(*ranks): module.init_process_groups(types.SimpleNamespace(pp_group=ranks))
def use():
    for _ in range(2):
        if rank == 0: dist.send(torch.zeros(1), 1)
        dist.recv(torch.zeros(1), 1 - rank)
        if rank == 1: dist.send(torch.zeros(1), 0)
        hook.iteration_end(explicit=True)
def show():
    page = hook.page()
    print(page.stage, page.stages, page.replica, page.waits)
"""


def test_messages_before_the_stages_and_a_pipeline_of_another_shape(tmp_path):
    """Warm-up messages make a rank attach by a guess; what the framework tells then, and later once more, is its place."""
    folder = tmp_path / "deepspeed/runtime/pipe"
    folder.mkdir(parents=True)
    (folder / "p2p.py").write_text("def init_process_groups(grid): pass\n")
    ranks = world(
        FRAMEWORK
        + INIT
        + """
use(); show()
pipeline(1, 0)
use(); show()
pipeline(rank)
show()
for _ in range(10): pipeline(0, 1); pipeline(1, 0)
show()
""",
        2,
        tmp_path,
    )
    (first, second) = ((out, err) for (out, err), code in finish(ranks))
    assert first[0].splitlines()[:3] == ["0 2 0 1", "1 2 0 1", "0 1 0 0"], first
    assert second[0].splitlines()[:3] == ["1 2 0 1", "0 2 0 1", "0 1 1 0"], second
    for _, err in (first, second):
        assert err.count("freeride: ") == 1 and "has changed 8 times: it is kept" in err


def test_what_a_rank_starts_is_no_rank_whatever_it_does(tmp_path):
    """Loaders' workers, and processes that write checkpoints and make a group of their own for that."""
    script = tmp_path / "starts.py"
    script.write_text(
        ALONE
        + """
import multiprocessing, subprocess
from torch.utils.data import DataLoader, Dataset

def hooked():
    hook = sys.modules.get('freeride._hook')
    return 'no hook' if hook is None else hook.hook.state()

class Data(Dataset):
    def __len__(self): return 1
    def __getitem__(self, index): return hooked()

def writes_checkpoints(out):
    alone()
    import freeride
    out.put([hooked(), freeride.attach(), freeride.state()])

if __name__ == '__main__':
    alone()
    print(hooked())
    for how in ('fork', 'spawn', 'forkserver'):
        for batch in DataLoader(Data(), num_workers=1, multiprocessing_context=how): print(how, *batch)
    for how in ('fork', 'spawn'):
        context = multiprocessing.get_context(how)
        out = context.Queue()
        process = context.Process(target=writes_checkpoints, args=(out,))
        if how == 'fork': dist.destroy_process_group()
        process.start()
        print(how, *out.get())
        process.join()
    print(hooked(), flush=True)
    subprocess.run([sys.executable, '-m', 'freeride.run', sys.argv[1]], check=True)
"""
    )
    below = tmp_path / "below.py"
    below.write_text(ALONE + "alone()\nimport freeride\nprint(freeride.state(), freeride.attach())\n")
    lines, err = said(script, below, run_dir=tmp_path)
    assert lines == [
        "starting",
        "fork gone",
        "spawn no hook",
        "forkserver no hook",
        "fork gone False gone",
        "spawn no hook False off",
        "starting",
        "off False",
    ]
    assert err.count("freeride: ") == 1 and "which is a rank, has started this one" in err


def test_ranks_that_a_script_spawns_are_hooked(tmp_path):
    """As torch.multiprocessing.spawn starts them, and as a class in a spawned process that makes its group on demand."""
    script = tmp_path / "spawns.py"
    script.write_text(
        ALONE
        + """
import torch.multiprocessing as mp
class Actor:
    def train(self, index):
        alone()
        import freeride
        from freeride._hook import hook
        print(hook.page().job.decode(), freeride.state(), flush=True)
if __name__ == '__main__':
    mp.spawn(Actor().train, nprocs=1)
    mp.start_processes(Actor().train, nprocs=1, start_method='forkserver')
"""
    )
    lines, err = said(script, run_dir=tmp_path, FREERIDE_JOB="spawned")
    assert lines == ["spawned starting"] * 2
    assert err == ""  # a rank below says so to the script


@pytest.mark.parametrize("restarts", [2])
def test_a_process_that_becomes_another_one_is_still_the_rank(tmp_path, restarts):
    """Restarts within a process: by an exec. What the environment says of a rank that started this process is then said of itself."""
    script = tmp_path / "again.py"
    script.write_text(
        ALONE
        + """
import freeride
freeride.attach()
alone()
print(freeride.state(), flush=True)
left = int(sys.argv[1])
if left: os.execv(sys.executable, [sys.executable, '-m', 'freeride.run', __file__, str(left - 1)])
"""
    )
    lines, err = said(script, str(restarts), run_dir=tmp_path)
    assert lines == ["starting"] * (restarts + 1)
    assert err == ""
