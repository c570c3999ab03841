"""python -m freeride.observe: real ranks, and what it says of files that are missing or broken."""

import json
import os
import signal
import subprocess
import sys

import pytest

from freeride import observe
from freeride._bubble_page import origins, what_if
from freeride._bubble_page import page as bubble_page
from support import SMALL, TRAIN, WATCHDOG, environment, free_port


def rank_file(rank=0, stages=1, **changes):
    iterations = [(number, 1000 + number * 100_000_000, 1000 + (number + 1) * 100_000_000) for number in range(1, 6)]
    bubbles = [(number, 1, "B", begin + 10_000_000, begin + 30_000_000) for number, begin, _ in iterations]
    return {
        "job": "gpt",
        "device": f"cpu-{rank}",
        "framework": "torch",
        "rank": rank,
        "stage": rank,
        "stages": stages,
        "replica": 0,
        "replicas": 1,
        "usable_bytes": 0,
        "bubbles": bubbles,
        "iterations": iterations,
        **changes,
    }


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "freeride.observe", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        env=environment("/nonexistent"),
        check=False,
    )


def test_ranks_leave_a_report(tmp_path):
    env = environment(
        tmp_path / "run", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE="2", FREERIDE_JOB="gpt"
    )
    out = tmp_path / "out"
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "freeride.observe",
                "--out",
                out,
                "--price",
                "2",
                "--skip=2",
                TRAIN,
                *SMALL,
                "--iterations",
                "8",
                "--rank",
                str(rank),
            ],
            env=dict(env, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=WATCHDOG) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert "gpt: 2 stages, 1 replica" in said[0][0] and "bubbles take" in said[0][0] and "$4.00" in said[0][0]
    assert said[1][0] == ""
    for rank in observe.load(out)[0]:
        assert [iteration for iteration, _, _ in rank["iterations"]] == list(range(8))
        # 1F1B over 2 stages and 4 micro-batches: 4 receives each.
        assert [(iteration, wait) for iteration, wait, *_ in rank["bubbles"]] == [
            (i, w) for i in range(8) for w in range(1, 5)
        ]
    spans = [event for event in json.load(open(out / "trace.json"))["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {1, 2} and all(event["dur"] > 0 for event in spans)
    page = (out / "bubbles.html").read_text()
    assert "Bubbles of gpt" in page and "4 micro-batches" in page and "$2.00" in page and str(TRAIN) in page
    again = command("--report", out)
    assert again.returncode == 0 and "gpt: 2 stages" in again.stdout


def test_the_shipped_example_is_observed_though_it_starts_its_own_ranks(tmp_path):
    out = tmp_path / "out"
    (out).mkdir()
    (out / "rank1.json").write_text("of an earlier run")
    done = subprocess.run(
        [sys.executable, "-m", "freeride.observe", "--out", out, TRAIN, *SMALL, "--iterations", "8"],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        env=environment(tmp_path / "run", FREERIDE_JOB="gpt"),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "gpt: 2 stages, 1 replica" in done.stdout and done.stdout.count("bubbles take") == 1
    assert "nothing was hooked" not in done.stderr and "--hook on" not in done.stderr
    assert [len(rank["iterations"]) for rank in observe.load(out)[0]] == [8, 8]


def test_a_report_is_made_while_the_training_goes_on_and_survives_its_kill(tmp_path):
    out = tmp_path / "out"
    words = ["--out", out, "--skip", "1", "--iterations", "4", TRAIN, *SMALL, "--iterations", "100000"]
    env = environment(tmp_path / "run", FREERIDE_JOB="gpt")
    with subprocess.Popen(
        [sys.executable, "-m", "freeride.observe", *map(str, words)],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as training:
        try:
            line = next((line for line in training.stdout if "2 stages" in line), "")
            assert "4 iterations of" in line
            assert training.poll() is None
        finally:
            os.killpg(training.pid, signal.SIGKILL)
    assert all(len(rank["iterations"]) == 5 for rank in observe.load(out)[0])


def test_table_counts_what_is_after_the_warm_up():
    text = "\n".join(observe.table([rank_file()], price=3.0, skip=2))
    assert "3 iterations of 100.0 ms" in text
    assert "20.0 %" in text and "$0.60 of the $3.00" in text
    assert "only" not in text


def pipeline(stages=3, micro=4, clock="host"):
    """A 1F1B pipeline whose stages work 10 ms a micro-batch, the last one 15 ms, in iterations of 100 ms."""
    ranks = []
    for stage in range(stages):
        chunk = 15_000_000 if stage == stages - 1 else 10_000_000
        waits = micro * (2 if 0 < stage < stages - 1 else 1)
        length = (100_000_000 - micro * chunk) // waits
        iterations = [(n, 1000 + n * 100_000_000, 1000 + (n + 1) * 100_000_000) for n in range(5)]
        bubbles = [
            (n, wait + 1, "AB"[wait % 2], begin + wait * length, begin + (wait + 1) * length)
            for n, begin, _ in iterations
            for wait in range(waits)
        ]
        changes = {"clock": clock if isinstance(clock, str) else clock[stage]}
        ranks.append(rank_file(stage, stages, iterations=iterations, bubbles=bubbles, **changes))
    return ranks


def test_on_a_gpu_bubbles_below_three_milliseconds_are_no_use():
    ranks = [rank_file(rank, 2, device=f"GPU-{rank}") for rank in range(2)]
    ranks[1]["bubbles"] = [(number, 1, "C", begin, begin + 2_900_000) for number, begin, _ in ranks[1]["iterations"]]
    lines = observe.table(ranks, 2.0)
    # 20 of 100 ms on the one, and on the other 2.9, which are too short
    assert "bubbles take 11.5 % of the devices' time: $0.46 of the $4.00" in lines[-3]
    assert lines[-2] == "side tasks can use those of 3 ms or longer, 10.0 % of the time: $0.40 an hour"
    assert "of the time: 4.8 device hours a day" in observe.table(ranks)[-2]
    page = bubble_page(ranks, [observe.measure(rank) for rank in ranks], price=2.0)
    assert "11.5 %" in page and "10.0 %" in page and "$9.60" in page
    ranks[1]["device"] = ranks[0]["device"] = "cpu-0"
    assert not any("3 ms" in line for line in observe.table(ranks))


def test_another_schedule_is_reckoned_from_the_measured_chunks():
    ranks = pipeline()
    rows = what_if(ranks, [observe.measure(rank) for rank in ranks])
    now, more, twice, interleaved, zero = [iteration_ms for _, iteration_ms, _, _ in rows]
    assert (now, more, twice) == pytest.approx((100, 115, 160))  # the slowest stage's 15 ms for each
    assert interleaved == pytest.approx(60 + 40 / 2) and zero == pytest.approx(60 + 40 / 3)
    assert [round(speed, 3) for _, _, speed, _ in rows][:2] == [1, round(5 / 115 * 25, 3)]
    assert rows[0][3] == pytest.approx(1 - (40 + 40 + 60) / 300) and rows[1][3] < rows[0][3]
    for odd in (ranks[:2], ranks[:1], [dict(ranks[0], bubbles=ranks[0]["bubbles"][:-1]), *ranks[1:]]):
        assert what_if(odd, [observe.measure(rank) for rank in odd]) == []


def test_the_page_needs_nothing_else_and_believes_no_name():
    ranks = pipeline()
    ranks[0].update(
        job="<script>alert(1)</script>",
        device='"><img src=x>',
        command=["train.py", "--text", "a b & <c>"],
        launcher=["python3"],
    )
    page = bubble_page(ranks, [observe.measure(rank) for rank in ranks])
    assert "<script" not in page and "<img" not in page and "http" not in page
    assert "python3 -m freeride.run train.py --text &#x27;a b &amp; &lt;c&gt;&#x27;" in page
    assert "--stage 0" in page and "38.4 h" in page and "$" not in page  # of 72 h a day
    assert "$76.80" in bubble_page(ranks, [observe.measure(rank) for rank in ranks], price=2.0)


@pytest.mark.parametrize(
    "started, line",
    [
        ({}, "python3 -m freeride.run train.py --rank 0"),  # the script starts the others
        (
            {"RANK": "0", "TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2"},
            "torchrun --nproc_per_node 2 -m freeride.run train.py --rank 0",
        ),
        ({"RANK": "0", "TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "2"}, "python3 -m freeride.run train.py …"),
        ({"RANK": "0", "MASTER_ADDR": "127.0.0.1"}, "python3 -m freeride.run train.py …"),  # by hand, or by Slurm
    ],
)
def test_no_command_is_recommended_with_one_ranks_own_arguments(monkeypatch, started, line):
    for name in ("RANK", "TORCHELASTIC_RUN_ID", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    ranks = [dict(rank, command=["train.py", "--rank", "0"], launcher=observe.launcher()) for rank in pipeline()]
    page = bubble_page(ranks, [observe.measure(rank) for rank in ranks])
    assert f"\n{line}\n" in page


def test_a_report_of_an_earlier_version_names_no_launcher():
    ranks = [dict(rank, command=["-m", "train", "--rank", "0"]) for rank in pipeline()]
    assert "python3 -m freeride.run -m train …" in bubble_page(ranks, [observe.measure(rank) for rank in ranks])


def test_one_iteration_has_one_figure():
    ranks = pipeline()
    ranks[1]["iterations"] = [(number, begin, end + 7_000_000) for number, begin, end in ranks[1]["iterations"]]
    found = [observe.measure(rank) for rank in ranks]
    page = bubble_page(ranks, found)
    assert (
        "107.0 ms" in page
        and "100.0 ms" not in page.split("What another schedule")[0].split("figures")[-1].split("<h2>")[0]
    )
    assert "iterations of 107.0 ms" in observe.table(ranks)[0]


def test_clocks_of_two_hosts_are_never_compared():
    ranks = pipeline(clock=("one", "one", "two"))
    later = 5_000_000_000_000
    for key in ("iterations", "bubbles"):  # the other host was booted at another time
        ranks[2][key] = [(*row[:-2], row[-2] + later, row[-1] + later) for row in ranks[2][key]]
    assert origins(ranks) == [1000, 1000, 1000 + later]
    page = bubble_page(ranks, [observe.measure(rank) for rank in ranks])
    assert "2 clocks" in page
    spans = [event for event in observe.trace(ranks)["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] for event in spans) < 1e6  # within the half second that it was
    assert "clocks" not in bubble_page(pipeline(), [observe.measure(rank) for rank in pipeline()])


def test_missing_ranks_are_said():
    assert "only 1 of 4 ranks left a file" in "\n".join(observe.table([rank_file(stages=4)]))


def test_iterations_that_only_warm_up_have_no_figure():
    text = "\n".join(observe.table([rank_file()], skip=50))
    assert "no rank has a figure: only 5 iterations ended, and the first 50 warm up" in text and "%" not in text


def test_one_rank_without_a_figure_leaves_none_of_all():
    ranks = [rank_file(rank, 2) for rank in range(2)]
    ranks[1].update(iterations=[], why="no_messages", reason="no message was seen")
    lines = observe.table(ranks, price=2.0)
    assert "rank 1 has no figure: no message was seen [no_messages]" in lines
    assert any("20.0 %" in line for line in lines) and not any("bubbles take" in line for line in lines)
    page = bubble_page(ranks, [observe.measure(rank) for rank in ranks], 2.0, observe.remarks(*observe_named(ranks)))
    assert "no_messages" in page and "$" not in page and "What another schedule" not in page


def observe_named(ranks):
    return observe.named(ranks), [observe.measure(rank) for rank in ranks]


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--price"], "--price needs a value"),
        (["--price", "much", "x.py"], "need a number"),
        (["--skip=-1", "x.py"], "cannot be negative"),
        (["--fast", "x.py"], "unknown option --fast"),
        (["--iterations", "0", "x.py"], "--iterations takes 1 to"),
        (["--skip", "2"], "which script?"),
        (["--report", "/nonexistent"], "no rank*.json in"),
    ],
)
def test_bad_options(arguments, line):
    done = command(*arguments)
    assert done.returncode == 2 and line in done.stderr and done.stderr.count("\n") == 1


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "rank0.json").write_text("{")
    done = command("--report", tmp_path)
    assert done.returncode == 2 and "rank0.json" in done.stderr


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    done = command("--out", tmp_path / "file" / "out", TRAIN)
    assert done.returncode == 2 and done.stderr.startswith("freeride.observe: ")


PHASES = [(f"{name}", 1000 + at * 50_000_000, 1000 + at * 50_000_000 + length) for at, (name, length) in enumerate(
    [("rollout", 30_000_000), ("save", 2_000_000)] * 4
)]  # fmt: skip


def with_phases(rank=0, **changes):
    """A rank without a pipeline that was looked at for 0.5 s: four rollouts of 30 ms and four saves of 2 ms."""
    iterations = [(n, 1000 + n * 100_000_000, 1000 + (n + 1) * 100_000_000) for n in range(4)]
    more = {"stages": 1, "placed": False, "phases": PHASES, "observed": (0, 500_000_000), "bubbles": []}
    return rank_file(rank, **{**more, "iterations": iterations, "stage": 0, "replica": rank, **changes})


def test_where_a_job_without_a_pipeline_idles():
    ranks = [with_phases(rank, replicas=2, world=2) for rank in range(2)]
    text = "\n".join(observe.table(ranks, price=2.0, skip=0))
    rows = [line.split() for line in text.splitlines() if "rollout" in line or " save " in line]
    assert rows == [[str(rank), f"cpu-{rank}", *kind] for rank in range(2) for kind in (
        ["rollout", "4", "30.0", "24.0", "%", "5.8"], ["save", "4", "2.0", "1.6", "%", "0.4"]
    )]  # fmt: skip
    assert "idle phases take 25.6 % of the devices' time: $1.02 of the $4.00" in text
    assert "bubble" not in text and "type" not in text and "stage" not in text.replace("1 stage", "")
    found = [observe.measure(rank) for rank in ranks]
    page = bubble_page(ranks, found, 2.0, (), observe.kinds_of_idle(ranks, found))
    assert "Idle phases of gpt" in page and "25.6 %" in page and "12.3 h" in page and "another schedule" not in page
    assert "FREERIDE_IDLE=all python3 -m freeride.run" in page
    on_gpu = [dict(rank, device="GPU-0") for rank in ranks]
    assert "FREERIDE_IDLE" not in bubble_page(on_gpu, found, 2.0, (), observe.kinds_of_idle(on_gpu, found))
    assert "12.3 of 48 device hours a day" in observe.table(ranks)[-1]


def test_phases_of_the_warm_up_do_not_count_nor_short_ones_of_a_gpu():
    (figures,) = [observe.measure(with_phases(), skip=2)]
    assert {name: len(lengths) for name, lengths in figures["phases"].items()} == {"rollout": 2, "save": 2}
    assert figures["phase_shares"]["rollout"] == pytest.approx(60 / 300, abs=1e-4)
    assert set(observe.measure(with_phases(device="GPU-0"))["phases"]) == {"rollout"}


def test_a_pipeline_with_phases_has_both():
    ranks = pipeline()
    for rank in ranks:
        rank.update(phases=PHASES, observed=(0, 500_000_000))
    text = "\n".join(observe.table(ranks))
    assert text.count(" pipeline ") == 3 and text.count(" rollout ") == 3
    assert "bubbles take" in text and "idle phases take" in text
    found = [observe.measure(rank) for rank in ranks]
    page = bubble_page(ranks, found, None, (), observe.kinds_of_idle(ranks, found))
    assert "Bubbles of gpt" in page and "Where each device idles" in page and "another schedule" in page


def test_a_phases_name_is_believed_nowhere():
    ranks = [with_phases(phases=[("<script>\n\x1b[1m", 0, 100_000_000)])]
    found = [observe.measure(rank) for rank in ranks]
    assert "<script" not in bubble_page(ranks, found, None, (), observe.kinds_of_idle(ranks, found))
    assert "\x1b" not in "\n".join(observe.table(ranks))


JOB = """
import freeride, time
for _ in range(4):
    with freeride.idle("rollout"):
        time.sleep(0.01)
    with freeride.idle("eval"):
        pass
"""


@pytest.mark.parametrize(
    "first, names",
    [
        ("", ["rollout", "eval"] * 4),
        (
            "import torch, io\ntorch.save({'w': torch.ones(2_000_000)}, io.BytesIO())\n",
            ["save", *["rollout", "eval"] * 4],
        ),
    ],
)
def test_a_job_without_a_pipeline_or_torch_leaves_a_report(tmp_path, first, names):
    script = tmp_path / "job.py"
    script.write_text(first + JOB)
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "freeride.observe", "--out", out, script],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        env=environment(tmp_path / "run", FREERIDE_JOB="gpt"),
        check=False,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert [name for name, _, _ in observe.load(out)[0][0]["phases"]] == names
    assert "idle phases take" in done.stdout and "has no figure" not in done.stdout
    assert "Idle phases of gpt" in (out / "bubbles.html").read_text()


def test_a_job_of_which_nothing_was_marked_says_so(tmp_path):
    script = tmp_path / "job.py"
    script.write_text("print('done')\n")
    done = command("--out", tmp_path / "out", script)
    assert done.returncode == 0 and "nor was an idle phase marked" in done.stderr
