"""The side task generate: what it makes is what model.generate() makes, whoever is beside it."""

import generate
import pytest
import torch
from tiny import save_model, sentences

PROMPTS = sentences(24, seed=7)


def open_task(folder, **params):
    task = generate.Generate()
    for key, value in {"model": str(folder), **params}.items():
        task.__dict__[key] = value
    task.CreateSideTask()
    task.InitSideTask()
    return task


def run(task, items, late=()):
    """The results by the item's number; new ones begin as soon as there is room, those in `late` after some steps."""
    waiting, tickets, results, steps, widest = list(enumerate(items)), {}, {}, 0, 0
    while waiting or tickets:
        while waiting and len(tickets) < task.most_at_once and (waiting[0][0] not in late or steps > 5):
            number, item = waiting.pop(0)
            ticket = task.begin(item)
            tickets[id(ticket)] = (number, ticket)
        widest = max(widest, len(tickets))
        for ticket, result in task.step() if tickets else ():
            results[tickets.pop(id(ticket))[0]] = result
        steps += 1
        assert steps < 10_000
    return [results[number] for number in range(len(items))], steps, widest


def expected(model, tokenizer, prompt, most_new):
    with torch.inference_mode():
        tokens = tokenizer(prompt, return_tensors="pt")["input_ids"]
        made = model.generate(tokens, do_sample=False, max_new_tokens=most_new, attention_mask=torch.ones_like(tokens))
    new = made[0, tokens.shape[1] :]
    return {
        "text": tokenizer.decode(new, skip_special_tokens=True),
        "tokens": len(new),
        "end": "stop" if new[-1] == tokenizer.eos_token_id else "length",
    }


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("sequences, piece", [(1, 512), (5, 512), (16, 40), (16, 4)])
def test_each_result_is_that_of_generate(request, kind, sequences, piece):
    folder, model, tokenizer = request.getfixturevalue(kind)
    task = open_task(folder, sequences=sequences, piece=piece, most_new=20)
    results, steps, widest = run(task, [{"prompt": prompt} for prompt in PROMPTS], late={20, 21, 22, 23})
    assert results == [expected(model, tokenizer, prompt, 20) for prompt in PROMPTS]
    assert widest == sequences
    assert sorted(task.free) == list(range(sequences)) and not task.running
    if sequences == 16 and piece == 512:
        assert steps < 24 * 20 / 4  # side by side, not one after the other


def test_sequences_end_where_the_model_does(tmp_path):
    """A model that is likely to end: sequences of many lengths beside each other."""
    model, tokenizer = save_model(tmp_path, seed=3)
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] = model.lm_head.weight.mean(0) + 0.2
    model.save_pretrained(tmp_path)
    task = open_task(tmp_path, sequences=6, most_new=30)
    results, *_ = run(task, PROMPTS)
    assert results == [expected(model, tokenizer, prompt, 30) for prompt in PROMPTS]
    assert {result["end"] for result in results} >= {"length"}


def test_a_prompt_as_long_as_the_model_knows(llama):
    folder, model, tokenizer = llama
    text = " ".join(sentences(60))
    ids = tokenizer(text)["input_ids"]
    prompt = tokenizer.decode(ids[:80])
    count = len(tokenizer(prompt)["input_ids"])
    task = open_task(folder, sequences=3, most_new=100, piece=32)
    (long, short), *_ = run(task, [prompt, "the bubble"])
    assert long["end"] in ("length", "stop") and long["tokens"] <= 96 - count
    assert long == expected(model, tokenizer, prompt, 96 - count)
    assert short == expected(model, tokenizer, "the bubble", 96 - len(tokenizer("the bubble")["input_ids"]))


def test_bad_items_are_that_items(llama):
    folder, _, tokenizer = llama
    task = open_task(folder)
    for item, said in (
        ({"text": "x"}, "no text 'prompt'"),
        (3, "no text"),
        ("", "no tokens"),
        ("the " * 200, "room for 95"),
    ):
        with pytest.raises(ValueError, match=said):
            task.begin(item)
    assert not task.joining


def test_after_an_error_all_begin_anew(llama):
    folder, model, tokenizer = llama
    task = open_task(folder, sequences=4, most_new=6)
    for prompt in PROMPTS[:4]:
        task.begin(prompt)
    task.step(), task.step()
    task.drop()
    results, *_ = run(task, PROMPTS)
    assert results == [expected(model, tokenizer, prompt, 6) for prompt in PROMPTS]


def test_a_model_that_is_not_greedy_by_its_own_settings_is_refused(tmp_path):
    model, _ = save_model(tmp_path)
    model.generation_config.repetition_penalty = 1.3
    model.save_pretrained(tmp_path)
    with pytest.raises(generate.TaskError, match="repetition_penalty=1.3"):
        open_task(tmp_path)
    with pytest.raises(generate.BadParameter, match="--read"):
        open_task("")
    with pytest.raises(generate.TaskError, match="config.json"):
        open_task(tmp_path / "nothing")


def test_labels_and_embeddings(tmp_path):
    for kind in ("label", "embed"):
        model, tokenizer = save_model(tmp_path / kind, kind)
        task = open_task(tmp_path / kind, what=kind, sequences=7)
        results, *_ = run(task, PROMPTS)
        for prompt, result in zip(PROMPTS, results):
            tokens = tokenizer(prompt, return_tensors="pt")["input_ids"]
            with torch.inference_mode():
                output = model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
            if kind == "label":
                scores = output.logits[0].softmax(-1)
                assert result["label"] == model.config.id2label[int(scores.argmax())]
                assert result["score"] == pytest.approx(float(scores.max()), rel=1e-4)
            else:
                mean = torch.nn.functional.normalize(output.last_hidden_state[0].mean(0), dim=-1)
                assert result == pytest.approx(mean.tolist(), rel=1e-3, abs=1e-5)
