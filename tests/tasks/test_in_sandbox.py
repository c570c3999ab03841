"""generate and evaluate as their pages load them: a real manager, a worker, the sandbox."""

import json
import os
import subprocess
import sys

import pytest
import torch
from tiny import save_model, sentences

from rig.testing import SOURCE, System, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files under another user's rights")

ALICE = 1  # "daemon"
FILES = ("--python", sys.executable)


@pytest.fixture
def place(opened):
    return opened


@pytest.fixture
def system(place):
    with System() as running:
        running.start_manager("--group", "daemon", "--default-memory-mib", "2048")
        running.start_worker("cpu-0", "--data", place, "--scratch-bytes", 64 << 20, "--init-ms", 120000)
        running.wait_workers(1)
        yield running


def give_to_alice(folder):
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ALICE, ALICE)


def as_alice(system, *words, timeout=300):
    user = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups"]
    program = system.tree.program("freeride-ctl")
    done = subprocess.run(
        [*user, *map(str, (program, *words))], env=system.env, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def lines_of(path):
    return path.read_text().count("\n") if path.exists() else 0


def test_generate_as_a_batch(system, place):
    model, tokenizer = save_model(place / "model")
    prompts = sentences(12, seed=3)
    (place / "alice").mkdir()
    (place / "alice/prompts.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in prompts))
    give_to_alice(place / "alice")
    give_to_alice(place / "model")
    as_alice(
        system, "batch", SOURCE / "plugins/generate/generate.py", "--input", place / "alice/prompts.jsonl", "--output",
        place / "alice/texts.jsonl", "--in-order", "--when-idle", "--memory", "2GiB", *FILES, "--read", place / "model",
        "--param", f"model={place}/model", "--param", "most_new=8", "--param", "sequences=4",
    )  # fmt: skip
    results = [json.loads(line)["result"] for line in (place / "alice/texts.jsonl").read_text().splitlines()]
    with torch.inference_mode():
        for prompt, result in zip(prompts, results, strict=True):
            tokens = tokenizer(prompt, return_tensors="pt")["input_ids"]
            made = model.generate(tokens, do_sample=False, max_new_tokens=8, attention_mask=torch.ones_like(tokens))
            assert result["text"] == tokenizer.decode(made[0, tokens.shape[1] :], skip_special_tokens=True)


def test_evaluate_while_checkpoints_appear(system, place):
    runs, written = place / "runs", place / "scores"
    for folder in (runs, written):
        folder.mkdir()
    save_model(place / "model")
    (place / "held_out.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in sentences(9)))
    give_to_alice(place)
    place.chmod(0o755)
    as_alice(
        system, "load", SOURCE / "plugins/evaluate/evaluate.py", "--name", "evaluate", "--when-idle", "--memory", "2GiB",
        *FILES, "--read", runs, "--read", place / "model", "--read", place / "held_out.jsonl", "--write", written,
        "--param", f"checkpoints={runs}", "--param", f"data={place}/held_out.jsonl", "--param", f"output={written}",
        "--param", f"model={place}/model", "--param", "settle_s=0.3", "--param", "most=2",
    )  # fmt: skip
    for step in (100, 200):
        save_model(runs / f"checkpoint-{step}.tmp", seed=step)
        give_to_alice(runs / f"checkpoint-{step}.tmp")
        (runs / f"checkpoint-{step}.tmp").rename(runs / f"checkpoint-{step}")
        until(lambda count=step // 100: lines_of(written / "scores.jsonl") == count, "a score")
    assert system.wait_verdict("evaluate")["kind"] == "finished"
    lines = [json.loads(line) for line in (written / "scores.jsonl").read_text().splitlines()]
    assert [one["step"] for one in lines] == [100, 200] and lines[0]["loss"] != lines[1]["loss"]
    metrics = system.task("evaluate")["counters"]["metrics"]
    assert metrics["step"] == 200 and metrics["loss"] == pytest.approx(lines[1]["loss"])
