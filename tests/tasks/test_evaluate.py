"""The side task evaluate: each whole checkpoint once, none that is half written, whatever is killed."""

import json
import os
import random
import shutil
import signal
import threading
import time

import evaluate
import pytest
import torch
from tiny import save_model, sentences

SETTLE_S = 0.3


@pytest.fixture
def place(tmp_path):
    for folder in ("checkpoints", "scores", "scratch", "model"):
        (tmp_path / folder).mkdir()
    save_model(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(21, seed=5)))
    return tmp_path


def open_task(place, **params):
    task = evaluate.Evaluate()
    task.scratch_dir = str(place / "scratch")
    given = {
        "checkpoints": str(place / "checkpoints"), "data": str(place / "data.jsonl"), "output": str(place / "scores"),
        "settle_s": SETTLE_S, "look_s": 0.02, "piece_mib": 1,
    }  # fmt: skip
    for key, value in {**given, **params}.items():
        task.__dict__[key] = value
    task.CreateSideTask()
    task.InitSideTask()
    return task


def run(task, there, seconds=60):
    end = time.monotonic() + seconds  # a watchdog
    while not there():
        assert time.monotonic() < end, "not in time"
        if task.RunNextStep() is evaluate.Step.FINISHED:
            return


def run_for(task, seconds):
    until = time.monotonic() + seconds
    run(task, lambda: time.monotonic() > until)


def scores(place):
    path = place / "scores/scores.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def save(place, name, seed, how="folder"):
    """As trainings do it: a folder that is renamed, a folder that is written in place, a file."""
    target = place / "checkpoints" / name
    if how == "folder":
        save_model(target.with_name(name + ".tmp"), seed=seed)
        target.with_name(name + ".tmp").rename(target)
    elif how == "in place":
        save_model(target, seed=seed)
    else:
        model, _ = save_model(place / f"made-{seed}", seed=seed)
        torch.save({"model": model.state_dict()}, target)


def expected_loss(place, seed):
    """Text by text, without the task."""
    model, tokenizer = save_model(place / f"expected-{seed}", seed=seed)
    loss = count = right = 0
    with torch.inference_mode():
        for line in (place / "data.jsonl").read_text().splitlines():
            tokens = tokenizer(json.loads(line)["text"], return_tensors="pt")["input_ids"]
            if tokens.shape[1] < 2:
                continue
            logits = model(input_ids=tokens).logits[0, :-1]
            loss += float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum"))
            right += int((logits.argmax(-1) == tokens[0, 1:]).sum())
            count += tokens.shape[1] - 1
    return loss / count, right / count


def test_each_checkpoint_once_and_rightly(place):
    save(place, "checkpoint-10", 1)
    save(place, "checkpoint-20", 2, "in place")
    (place / "checkpoints/notes.txt").write_text("none")
    (place / "checkpoints/.hidden").mkdir()
    task = open_task(place)
    run(task, lambda: len(scores(place)) == 2)
    save(place, "checkpoint-30", 3)
    run(task, lambda: len(scores(place)) == 3)
    again = open_task(place)
    run_for(again, 4 * SETTLE_S)
    found = scores(place)
    assert [(one["checkpoint"], one["step"]) for one in found] == [(f"checkpoint-{n}", n) for n in (10, 20, 30)]
    for one, seed in zip(found, (1, 2, 3)):
        loss, right = expected_loss(place, seed)
        assert one["loss"] == pytest.approx(loss, rel=1e-4) and one["accuracy"] == pytest.approx(right, rel=1e-6)


def test_a_name_that_is_written_again_is_another_checkpoint(place):
    save(place, "latest.pt", 1, "file")
    task = open_task(place, model=str(place / "model"))
    run(task, lambda: len(scores(place)) == 1)
    os.remove(place / "checkpoints/latest.pt")
    save(place, "latest.pt", 2, "file")
    run(task, lambda: len(scores(place)) == 2)
    first, second = scores(place)
    assert first["checkpoint"] == second["checkpoint"] and first["identity"] != second["identity"]
    assert second["loss"] == pytest.approx(expected_loss(place, 2)[0], rel=1e-4)


def test_a_file_is_whole_when_its_last_byte_is_there(place):
    save(place, "a.pt", 1, "file")
    model, _ = save_model(place / "safe", seed=1)
    for path in (place / "checkpoints/a.pt", place / "safe/model.safetensors"):
        content = path.read_bytes()
        assert evaluate.whole_file(str(path))
        for cut in (0, 1, 7, 8, 40, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:cut])
            assert not evaluate.whole_file(str(path)), (path, cut)
        path.write_bytes(content + b"more")
        assert evaluate.whole_file(str(path)) == (path.suffix == ".pt")  # a zip may have a tail; its end is looked for
        path.write_bytes(b"\xff" * 64)
        assert not evaluate.whole_file(str(path))


def test_what_is_half_written_is_not_read(place):
    """Written piece by piece with pauses that are longer than what counts as settled."""
    save_model(place / "made", seed=4)
    source, target = place / "made", place / "checkpoints/checkpoint-7"
    target.mkdir()
    task = open_task(place)
    opened = []
    task.tensors = lambda path: opened.append(path) or evaluate.Evaluate.tensors(path)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, target)
    content = (source / "model.safetensors").read_bytes()
    for part in range(3):
        with open(target / "model.safetensors", "ab") as file:
            file.write(content[part * len(content) // 3 : (part + 1) * len(content) // 3])
        if part < 2:
            run_for(task, 3 * SETTLE_S)
            assert opened == [] and scores(place) == []
    run(task, lambda: len(scores(place)) == 1)
    assert scores(place)[0]["loss"] == pytest.approx(expected_loss(place, 4)[0], rel=1e-4)


def test_shards_and_markers_are_waited_for(place):
    model, tokenizer = save_model(place / "made", seed=4)
    target = place / "checkpoints/checkpoint-9"
    model.save_pretrained(target, max_shard_size="20KB")
    tokenizer.save_pretrained(target)
    shards = sorted(target.glob("model-*.safetensors"))
    assert len(shards) > 1
    shards[-1].rename(place / "held back")
    task = open_task(place, marker="done")
    run_for(task, 3 * SETTLE_S)
    (place / "held back").rename(shards[-1])
    run_for(task, 3 * SETTLE_S)
    assert scores(place) == []
    (target / "done").touch()
    run(task, lambda: len(scores(place)) == 1)
    assert scores(place)[0]["loss"] == pytest.approx(expected_loss(place, 4)[0], rel=1e-4)


def test_one_that_changes_or_goes_while_it_is_read_does_not_count(place):
    save(place, "checkpoint-1", 1)
    task = open_task(place)
    build = task.build

    def and_then(action):
        def built(folder):
            build(folder)
            action()
            task.build = build

        task.build = built

    and_then(lambda: save(place, "checkpoint-1", 2, "in place"))
    run(task, lambda: len(scores(place)) == 1)
    assert scores(place)[0]["loss"] == pytest.approx(expected_loss(place, 2)[0], rel=1e-4)
    save(place, "checkpoint-2", 3)
    and_then(lambda: shutil.rmtree(place / "checkpoints/checkpoint-2"))
    save(place, "checkpoint-3", 4)
    run(task, lambda: len(scores(place)) == 2)
    assert scores(place)[1]["checkpoint"] == "checkpoint-3"


def test_one_that_is_no_such_model_is_told_and_left_alone(place):
    model, _ = save_model(place / "gpt", "gpt2")
    torch.save(model.state_dict(), place / "checkpoints/other.pt")
    save(place, "right.pt", 1, "file")
    said = []
    task = open_task(place, model=str(place / "model"))
    task._host = {"log": lambda level, text: said.append(text), "metric": lambda *_: None}
    run(task, lambda: len(scores(place)) == 1)
    assert scores(place)[0]["checkpoint"] == "right.pt"
    assert any("other.pt cannot be read: KeyError: 'it has no " in text for text in said), said


def test_a_step_of_an_evaluation_goes_over_to_whoever_goes_on(place):
    save(place, "checkpoint-1", 1)
    task = open_task(place, batch=2)
    run(task, lambda: task.now is not None and task.at >= 6)
    state = task.SaveState()
    assert json.loads(state)["at"] == task.at
    other = open_task(place, batch=2)
    other.RestoreState(1, state)
    began = []
    score_items = other.score_items
    other.score_items = lambda items: began.append(other.at) or score_items(items)
    run(other, lambda: len(scores(place)) == 1)
    assert began[0] == task.at
    assert scores(place)[0]["loss"] == pytest.approx(expected_loss(place, 1)[0], rel=1e-4)
    with pytest.raises(evaluate.TaskError):
        other.RestoreState(2, state)


def test_half_a_line_of_one_that_was_killed_is_no_line(place):
    path = place / "scores/scores.jsonl"
    path.write_text('{"checkpoint":"a","identity":"1"}\n{"checkpoint":"b","ident')
    found = evaluate.Scores(str(path))
    assert found.done == {("a", "1")} and path.read_text().endswith('"1"}\n')
    found.add({"checkpoint": "c", "identity": "2"})
    assert [one["checkpoint"] for one in scores(place)] == ["a", "c"]


def live(place):
    """A process of its own, which evaluates until it is killed. Forked, since what it imports takes seconds."""
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        task = open_task(place, batch=2)
        while True:
            task.RunNextStep()
    finally:
        os._exit(1)


def test_none_is_missed_or_counted_twice_while_it_is_killed(place):
    """Killed at random, while checkpoints appear in both ways."""
    count, chosen = 8, random.Random(2)

    def train():
        for n in range(count):
            save(place, f"checkpoint-{n}", n, ("folder", "in place")[n % 2])
            time.sleep(0.4)

    training = threading.Thread(target=train)
    kills, barren, end = 0, 0, time.monotonic() + 600  # a watchdog
    pid = live(place)
    training.start()
    while (before := lines_of(place)) < count:
        # Each third life goes on until it has done something, however slow the machine is.
        pause = time.monotonic() + chosen.uniform(0.05, 1.0)
        while time.monotonic() < pause or (barren >= 2 and lines_of(place) == before):
            assert time.monotonic() < end and os.waitpid(pid, os.WNOHANG) == (0, 0)
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills += 1
        barren = 0 if lines_of(place) > before else barren + 1
        pid = live(place)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    training.join()
    assert kills >= 3
    found = scores(place)
    assert sorted(one["checkpoint"] for one in found) == [f"checkpoint-{n}" for n in range(count)]
    for one in found[::3]:
        assert one["loss"] == pytest.approx(expected_loss(place, one["step"])[0], rel=1e-4)


def lines_of(place):
    path = place / "scores/scores.jsonl"
    return path.read_text().count("\n") if path.exists() else 0
