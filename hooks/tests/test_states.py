"""No silent state: what a rank says of itself, on standard error, in its page and in observe's report, where its bubbles cannot be used."""

import json
import re
import subprocess
import sys

import pytest

import freeride
from freeride import _status, observe, pages
from freeride._library import Library
from support import LIBRARY, SOURCE, WATCHDOG, Worker, environment, finish, free_port, python, world

# Two ranks send and answer: rank 0 waits for rank 1, and the other way round.
LOOP = """
dist.init_process_group('gloo')
group = {group}
optimizer = torch.optim.SGD([torch.zeros(4, requires_grad=True)], lr=0.1)
for _ in range({iterations}):
    for micro in range(2):
        if rank % 2 == 0:
            dist.send(torch.zeros(4), rank + 1, group=group)
            dist.recv(torch.zeros(4), rank + 1, group=group)
        else:
            dist.recv(torch.zeros(4), rank - 1, group=group)
            dist.send(torch.zeros(4), rank - 1, group=group)
    {step}
"""
APART = "[dist.new_group([first, first + 1]) for first in range(0, size, 2)][rank // 2]"
STATUS = "import freeride; print(*freeride.status()[:2], flush=True)\n"


def loop(group="None", iterations=60, step="optimizer.step()"):
    return LOOP.format(group=group, iterations=iterations, step=step)


def lines_of(err):
    return [line for line in err.splitlines() if line.startswith("freeride: ")]


def observed(tmp_path, code, size=2, options=(), **env):
    """Runs `size` ranks of this code through freeride.observe; returns rank 0's report, all ranks' lines, and the ranks' files."""
    script, out, port = tmp_path / "rank.py", tmp_path / "out", free_port()
    script.write_text(
        "import os, time, torch, torch.distributed as dist\nrank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
        "torch.set_num_threads(1)\n" + code
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "freeride.observe", "--out", str(out), *map(str, options), str(script)],
            env=environment(
                tmp_path, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **env
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = finish(ranks)
    assert [code for _, code in said] == [0] * size, said
    files = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(size)]
    return said[0][0][0], [line for (_, err), _ in said for line in lines_of(err)], files


# ---- the closed set --------------------------------------------------------------------------------------------------------------


@pytest.fixture(name="library")
def _library(monkeypatch):
    monkeypatch.setenv("FREERIDE_HOOK_LIBRARY", str(LIBRARY))
    return Library()


def test_the_numbers_of_python_and_of_the_library_mean_the_same(library):
    ours = {name.lower(): number for name, number in vars(_status).items() if name.isupper() and name != "MANY_STEPS"}
    assert len(ours) == 10 and ours == {library.explain(number)[0]: number for number in ours.values()}
    header = (SOURCE / "policy/include/freeride/policy/rank_why.hpp").read_text()
    for number in re.findall(r"^  k\w+ = (\d+),", header, re.M)[1:]:
        name, text, _ = library.explain(int(number))
        assert name and text, number
    assert library.explain(9999) == ("", "", False)


@pytest.mark.parametrize(
    "env, code, expected",
    [
        ({}, "\n", "off not_asked"),
        ({"FREERIDE_HOOK": "0"}, "freeride.attach()\n", "off hook_off"),
        ({}, "freeride.attach()\n", "waiting no_group"),
        ({"FREERIDE_GROUP": "nonsense"}, "freeride.attach()\n", "off failed"),
        ({"FREERIDE_HOOK_LIBRARY": "/nowhere.so"}, "\n", "off failed"),
    ],
)
def test_a_rank_that_is_not_attached_says_why(tmp_path, env, code, expected):
    done = python("import freeride\n" + code + STATUS, run_dir=tmp_path, **env)
    assert done.returncode == 0 and done.stdout == expected + "\n", done.stderr


@pytest.mark.parametrize("stage, flags", [("", pages.GUESSED), ("stage=rank", 0)])
def test_a_stage_that_nobody_has_told_is_a_guess_on_the_page(tmp_path, stage, flags):
    ranks = world(
        f"import freeride\nfreeride.attach({stage})\n"
        + loop(iterations=1)
        + "from freeride._hook import hook\nprint(hook.page().flags, flush=True)\n",
        2,
        tmp_path,
    )
    for (out, err), code in finish(ranks):
        assert code == 0 and int(out) == flags, err


def test_an_attached_rank_says_why_from_its_first_message_to_its_end(tmp_path):
    ranks = world(
        "import freeride\n"
        + STATUS
        + loop(iterations=1, step="")
        + STATUS
        + "optimizer.step()\n"
        + STATUS
        + "freeride.disable('lunch')\n"
        + STATUS
        + "freeride.detach()\n"
        + STATUS,
        2,
        tmp_path,
    )
    for (out, err), code in finish(ranks):
        assert code == 0, err
        assert out.splitlines() == [
            "waiting no_group",
            "starting no_iterations",
            "active learning",
            "disabled disabled",
            "off ended",
        ]


# ---- what was taken for "no bubbles" ---------------------------------------------------------------------------------------------


def test_a_loop_on_a_group_of_its_own_says_that_its_messages_are_passed_over(tmp_path):
    worker = Worker(tmp_path, "cpu-0")
    ranks = world(loop(APART) + STATUS, 2, tmp_path)
    page = worker.take()
    said = finish(ranks)
    for (out, err), code in said:
        assert code == 0 and out == "starting other_groups\n", err
        (line,) = lines_of(err)
        assert "[other_groups]" in line and "FREERIDE_GROUP" in line
    assert worker.wait_gone() and page.view.noted == _status.OTHER_GROUPS
    worker.close()


def test_a_framework_that_was_imported_and_tells_nothing_postpones_the_attach_not_for_ever(tmp_path):
    """By a library, say, which needs something else of it."""
    (tmp_path / "megatron/core").mkdir(parents=True)
    (tmp_path / "megatron/core/parallel_state.py").write_text("def initialize_model_parallel(): pass\n")
    imports = "import megatron.core.parallel_state\n"
    path = f"{SOURCE / 'hooks/python'}:{tmp_path}"
    worker = Worker(tmp_path, "cpu-0")
    ranks = world(imports + loop(APART) + STATUS, 2, tmp_path, PYTHONPATH=path)
    page = worker.take()  # it attached
    for (out, err), code in finish(ranks):
        assert code == 0 and out == "starting other_groups\n", err
        assert len(lines_of(err)) == 1 and "[other_groups]" in err
    assert worker.wait_gone() and page.view.noted == _status.OTHER_GROUPS
    worker.close()
    (ranks,) = finish(world(imports + "dist.init_process_group('gloo')\n" + STATUS, 1, tmp_path, PYTHONPATH=path))
    assert ranks[0][0] == "waiting framework_silent\n"


def test_observe_has_no_figure_of_a_loop_whose_messages_it_passes_over(tmp_path):
    report, _, files = observed(tmp_path, loop(APART, iterations=8))
    assert "%" not in report and "bubbles take" not in report
    assert "training" not in report and "no rank has a figure: the rank receives messages, but of groups" in report
    assert [rank["iterations"] for rank in files] == [[], []]
    assert "%" not in (tmp_path / "out/bubbles.html").read_text().split("<h1>")[1]


def test_observe_has_no_figure_where_only_some_messages_are_taken_for_the_pipelines(tmp_path):
    code = loop(
        APART,
        iterations=8,
        step="dist.barrier(); dist.send(torch.zeros(1), 1) if rank == 0 else dist.recv(torch.zeros(1), 0); optimizer.step()",
    )
    report, _, files = observed(tmp_path, code)
    assert files[1]["iterations"] and files[1]["ignored"] == 32
    assert "bubbles take" not in report and "no rank has a figure" not in report
    assert "rank 1 has no figure: 32 of its messages are of groups that are taken for no pipeline's" in report


def test_observe_has_a_figure_when_it_is_told_the_group(tmp_path):
    report, lines, files = observed(tmp_path, loop(APART, iterations=8), FREERIDE_GROUP="any")
    assert "bubbles take" in report and lines == [] and files[0]["sources"] == [1]


def test_observe_of_an_evaluation_says_that_no_iteration_has_ended(tmp_path):
    report, _, files = observed(tmp_path, loop(step="", iterations=20))
    assert len(files[0]["bubbles"]) == 40 and files[0]["why"] == "no_iterations"
    assert "no rank has a figure: no iteration has ended, since no optimizer" in report and "%" not in report


def test_observe_calls_ranks_without_messages_no_stages(tmp_path):
    code = """
dist.init_process_group('gloo')
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(4)).sum().backward()
    optimizer.step()
"""
    report, lines, _ = observed(tmp_path, code)
    assert report.lstrip().split("\n")[0].split(": ")[1].startswith("2 ranks")
    assert "no message of a pipeline was seen" in report and "stage 0" not in report and "%" not in report
    assert lines == []


def test_observe_names_no_stage_where_a_loop_of_its_own_has_replicas(tmp_path):
    report, _, _ = observed(tmp_path, loop(iterations=8), size=4)
    assert "4 ranks, 5 iterations of" in report and "no stage is named" in report
    assert re.search(r"^ +rank device", report, re.M) and "bubbles take" in report
    report, _, _ = observed(tmp_path, loop(iterations=8), size=4, FREERIDE_STAGES=2)
    assert "2 stages, 2 replicas" in report and "no stage is named" not in report


def test_observe_reports_no_iterations_that_only_warm_up(tmp_path):
    report, _, _ = observed(tmp_path, loop(iterations=3))
    assert "no rank has a figure: only 3 iterations ended, and the first 3 warm up" in report and "%" not in report


def test_observe_leaves_out_the_files_of_an_earlier_and_larger_run(tmp_path):
    observed(tmp_path, loop(iterations=8), size=4, FREERIDE_JOB="gpt")
    report, _, _ = observed(tmp_path, loop(iterations=8), size=2, FREERIDE_JOB="gpt")
    assert "files of another run are left out: rank 2, 3" in report and "2 stages" in report
    ranks, others = observe.load(tmp_path / "out")
    assert [rank["rank"] for rank in ranks] == [0, 1] and [rank["rank"] for rank in others] == [2, 3]


def test_observe_says_what_waits_for_sends_take_where_a_send_waits_for_its_receiver(tmp_path):
    # Larger than what gloo and the sockets take in: the send ends when the receiver comes.
    code = """
dist.init_process_group('gloo')
optimizer = torch.optim.SGD([torch.zeros(4, requires_grad=True)], lr=0.1)
much = torch.zeros(16 << 20)
for _ in range(5):
    if rank == 0:
        dist.send(much, 1)
        dist.recv(much[:1], 1)
    else:
        time.sleep(0.3)
        dist.recv(much, 0)
        dist.send(much[:1], 0)
    optimizer.step()
"""
    report, _, files = observed(tmp_path, code)
    assert files[0]["send_ns"] > 0 and files[1]["send_ns"] >= 0
    assert re.search(r"waits for sends take up to \d+\.\d % of a rank's time: on gloo", report), report


def test_steps_that_far_outnumber_iterations_are_said_in_place_of_a_figure(tmp_path):
    code = loop(iterations=5) + "for _ in range(60): optimizer.step()\n"
    report, _, files = observed(tmp_path, code)
    assert files[0]["steps"] == 65
    assert "no rank has a figure: the optimizer made 65 steps in 5 iterations" in report


def test_a_pipeline_in_jax_is_not_told_of_torchs_process_group(tmp_path):
    (tmp_path / "jax.py").write_text("")
    (tmp_path / "train.py").write_text("import jax\n")
    done = subprocess.run(
        [sys.executable, "-m", "freeride.run", str(tmp_path / "train.py")],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.returncode == 0 and "transfers of JAX" in done.stderr and "init_process_group" not in done.stderr
    report, _, _ = observed(tmp_path, "import jax\n", size=1)
    assert "no rank has a figure: torch.distributed has no default group yet" in report and "%" not in report


# ---- patience --------------------------------------------------------------------------------------------------------------------


def test_a_rank_is_patient_for_so_many_steps_or_so_long():
    now = [0.0]
    patience = _status.Patience(clock=lambda: now[0])
    now[0] = 1000.0
    assert not patience.ended()  # there is no group yet
    patience.begin()
    now[0] += _status.Patience.SECONDS - 1
    assert not patience.ended()
    now[0] += 1
    assert patience.ended()
    steps = _status.Patience(clock=lambda: 0.0)
    steps.iterations = _status.Patience.ITERATIONS
    assert not steps.ended()
    steps.iterations += 1
    assert steps.ended()
    assert [steps.called() for _ in range(_status.Patience.EVERY)].count(True) == 1


def test_the_page_has_a_place_for_what_only_the_ranks_process_knows():
    assert pages.BubblePage.noted.offset == 376
    assert freeride.status.__doc__
