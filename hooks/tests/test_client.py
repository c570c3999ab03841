"""freeride.client on a freeride-ctl that is played: what it is asked, and what becomes of what it says. With the real
one: tests/e2e/test_client.py."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from freeride import client

# Plays the manager's side in a folder: each call is a line of calls.jsonl, and answers come from answers.json, a list of
# [code, stdout, stderr] that is used up, the last one staying.
PROGRAM = """\
#!/usr/bin/python3
import json, pathlib, sys
place = pathlib.Path(__file__).parent
with open(place / "calls.jsonl", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
verb = next(word for word in sys.argv[1:] if word in ("load", "task", "stop", "status", "batch"))
if verb == "batch":
    verb = "batch " + sys.argv[sys.argv.index("batch") + 1].rsplit(".", 1)[-1].replace("py", "submit")
answers = json.loads((place / "answers.json").read_text())
left = answers[verb]
code, out, err = left[0]
if len(left) > 1:
    left.pop(0)
    (place / "answers.json").write_text(json.dumps(answers))
if verb == "batch submit" and code == 0:
    words = sys.argv
    output = pathlib.Path(words[words.index("--output") + 1])
    lines = pathlib.Path(words[words.index("--input") + 1]).read_text().splitlines()
    bad = [n for n, line in enumerate(lines) if "bad" in line]
    output.write_text("".join(json.dumps({"index": n, "result": json.loads(line)}) + "\\n" for n, line in enumerate(lines) if n not in bad))
    if bad:
        output.with_name("results.failed.jsonl").write_text(
            "".join(json.dumps({"index": n, "reason": "ValueError: bad", "tries": 3}) + "\\n" for n in bad))
    (place / "batch.json").write_text(json.dumps({"name": words[words.index("--name") + 1], "output": str(output), "items": len(lines), "bad": len(bad)}))
if out == "BATCHES":
    made = json.loads((place / "batch.json").read_text())
    out = json.dumps({"batches": [{"name": made["name"], "state": "finished", "done": made["items"] - made["bad"], "failed": made["bad"],
        "asked": {"items": made["items"], "output": made["output"]}, "ended_unix_ms": 1}]})
if "@MARK@" in out:
    first = json.loads((place / "calls.jsonl").read_text().splitlines()[0])
    out = out.replace("@MARK@", first[-1].split("=")[1])
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""
SILENT = [3, "", json.dumps({"code": "timeout", "message": "no manager answers", "hint": "start freeride-manager"})]


def said(code, message, hint=""):
    return "a warning\n" + json.dumps({"code": code, "message": message, "hint": hint}) + "\n"


def task_json(state="RUNNING", kind="", labels=None):
    verdict = {"kind": kind, "cause": "steps", "reason": "it has made 5 steps"} if kind else {}
    counters = {"steps": 5, "harvested_ns": 2_000_000_000, "metrics": {"n": 1.5}}
    state = {
        "task": "t",
        "state": state,
        "reason": "why",
        "worker": "h:cpu-0",
        "counters": counters,
        "verdict": verdict,
    }
    return json.dumps({"task": {"state": state, "load": {"labels": labels or {}}}})


@pytest.fixture
def ctl(tmp_path):
    class Ctl:
        folder = tmp_path / "data"

        def __init__(self):
            self.folder.mkdir()
            self.program = tmp_path / "ctl"
            self.program.write_text(PROGRAM)
            self.program.chmod(0o755)
            self.client = client.Client(program=self.program, folder=self.folder, patience_s=30)

        def answers(self, **answers):
            (tmp_path / "answers.json").write_text(
                json.dumps({verb.replace("_", " "): [list(one) for one in each] for verb, each in answers.items()})
            )

        def calls(self):
            return [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]

    return Ctl()


def test_torch_is_not_imported():
    code = "import sys; from freeride import client; sys.exit('torch' in sys.modules)"
    package = pathlib.Path(client.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(package)}).returncode == 0


@pytest.mark.parametrize(
    "code, kind",
    [
        ("not_found", client.NotFound),
        ("invalid_argument", client.InvalidArgument),
        ("already_exists", client.Exists),
        ("rejected", client.Rejected),
        ("permission", client.PermissionDenied),
        ("exhausted", client.FreeRideError),
        ("something new", client.FreeRideError),
    ],
)
def test_an_error_is_an_exception_with_message_and_hint(ctl, code, kind):
    ctl.answers(task=[(1, "", said(code, "no task; is named so", "look; at the list"))])
    with pytest.raises(kind) as caught:
        ctl.client.task("t")
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.hint) == ("no task; is named so", "look; at the list")
    assert caught.value.code == code and str(caught.value) == "no task; is named so; look; at the list"


def test_a_program_that_is_killed_or_missing_is_an_error_too(ctl, tmp_path):
    ctl.answers(task=[(134, "", "terminate called\n")])
    with pytest.raises(client.FreeRideError, match="ended with 134: terminate called"):
        ctl.client.task("t")
    with pytest.raises(client.Unavailable, match="cannot be started"):
        client.Client(program=tmp_path / "nothing", patience_s=0).status()
    ctl.answers(task=[(0, "{half", "")])
    with pytest.raises(client.FreeRideError, match="cannot be read"):
        ctl.client.task("t")


def test_a_manager_that_is_away_is_waited_for_and_given_up(ctl):
    ctl.answers(task=[SILENT, SILENT, (0, task_json(), "")])
    assert ctl.client.task("t").name == "t"
    assert len(ctl.calls()) == 3
    ctl.answers(task=[SILENT])
    with pytest.raises(client.Unavailable, match="start freeride-manager"):
        client.Client(program=ctl.program, patience_s=0).task("t")


def test_submit_says_what_was_asked(ctl):
    ctl.answers(load=[(0, task_json(), "")], task=[(0, task_json(), ""), (0, task_json("STOPPED", "finished"), "")])
    task = ctl.client.submit(
        "pagerank.so", params={"scale": 14, "repeat": False}, stage=1, when_idle=True, read=["/a", "/b:/c"], memory=None
    )
    call = ctl.calls()[0]
    assert call[:5] == ["--format", "json", "--errors", "json", "load"] and call[5] == "pagerank.so"
    words = " ".join(call)
    assert "--param scale=14 --param repeat=0 --stage 1 --when-idle --read /a --read /b:/c" in words
    assert "--memory" not in words
    seen = task.status()
    assert (seen.state, seen.steps, seen.harvested_s, seen.metrics, seen.verdict) == (
        "RUNNING",
        5,
        2.0,
        {"n": 1.5},
        None,
    )
    verdict = task.wait()
    assert verdict == client.Verdict("finished", "steps", "it has made 5 steps") and verdict.good


def test_submitting_again_after_a_lost_answer_makes_one_task(ctl):
    lost = (1, "", said("already_exists", "there is a task 't'"))
    ctl.answers(load=[SILENT, lost], task=[(0, task_json(labels={"freeride-client": "@MARK@"}), "")])
    assert ctl.client.submit("x.so", name="t").name == "t"
    first, second = ctl.calls()[:2]
    assert first == second and first[-2] == "--label"
    ctl.answers(load=[SILENT, lost], task=[(0, task_json(labels={"freeride-client": "another"}), "")])
    with pytest.raises(client.Exists):  # somebody else's
        ctl.client.submit("x.so", name="t")


def test_map_gives_results_in_order_and_leaves_nothing(ctl):
    ctl.answers(**{"batch_submit": [(0, "{}", "")], "batch_ls": [(0, "BATCHES", "")], "batch_rm": [(0, "{}", "")]})
    seen = []
    items = [{"text": "größe"}, 2, None, "x\ny"]
    assert list(ctl.client.map("score.py", iter(items), progress=seen.append, retries=1)) == items
    assert seen[-1].done == 4 and seen[-1].ended
    submit = next(call for call in ctl.calls() if "--output" in call)
    assert "--in-order" in submit and "--detach" in submit and "--retries" in submit
    assert list(ctl.folder.iterdir()) == []


def test_map_of_nothing_asks_nobody(ctl):
    assert list(ctl.client.map("score.py", [])) == []
    assert list(ctl.folder.iterdir()) == []


def test_an_item_that_failed_raises_in_its_turn_or_stands_in_its_place(ctl):
    ctl.answers(**{"batch_submit": [(0, "{}", "")], "batch_ls": [(0, "BATCHES", "")], "batch_rm": [(0, "{}", "")]})
    items = ["bad one", "a", "bad two", "bad three", "b", "bad four"]
    results = list(ctl.client.map("score.py", items, failed="return"))
    assert [one if isinstance(one, str) else (one.index, one.reason, one.tries) for one in results] == [
        (0, "ValueError: bad", 3), "a", (2, "ValueError: bad", 3), (3, "ValueError: bad", 3), "b", (5, "ValueError: bad", 3)
    ]  # fmt: skip
    turn = ctl.client.map("score.py", items[1:], failed="raise")
    assert next(turn) == "a"
    with pytest.raises(client.ItemFailed, match="item 1 has failed 3 times: ValueError: bad"):
        next(turn)
    assert list(ctl.folder.iterdir()) == []


def test_a_batch_is_submitted_once_whatever_becomes_of_the_answer(ctl):
    # The manager had taken it; the answer was lost.
    ctl.answers(**{"batch_submit": [(0, "{}", "")], "batch_ls": [(0, "BATCHES", "")], "batch_rm": [(0, "{}", "")]})
    batch = ctl.client.batch("score.py", [1, 2])
    ctl.answers(**{"batch_submit": [SILENT, (9, "", "asked twice")], "batch_ls": [(0, "BATCHES", "")]})
    ctl.client._submit_batch(
        ["batch", "score.py", "--input", "x", "--output", batch.folder / "results.jsonl"], batch.name,
        batch.folder / "results.jsonl",
    )  # fmt: skip
    # It had not: it is asked again.
    ctl.answers(
        **{"batch_submit": [SILENT, (0, "{}", "")], "batch_ls": [(0, '{"batches":[]}', ""), (0, "BATCHES", "")]}
    )
    assert list(ctl.client.batch("score.py", [3]).results()) == [3]


def test_a_folder_that_cannot_hold_the_list_is_said_with_what_to_do(ctl, tmp_path):
    one = client.Client(program=ctl.program, folder=tmp_path / "nowhere")
    with pytest.raises(client.InvalidArgument, match="FREERIDE_DATA"):
        one.batch("score.py", [1])


def test_what_cannot_be_json_leaves_no_folder(ctl):
    with pytest.raises(TypeError):
        ctl.client.batch("score.py", [object()])
    assert list(ctl.folder.iterdir()) == []


def test_the_module_says_what_it_exports():
    assert all(hasattr(client, name) for name in client.__all__)
    assert textwrap.dedent(client.__doc__).startswith("Side tasks and batches")
