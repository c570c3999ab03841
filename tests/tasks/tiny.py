"""Tiny models and texts for the tests of side tasks in Python, made here."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("plugin-api/python", "plugins/generate", "plugins/evaluate", "tests"):
    sys.path.insert(0, str(ROOT / folder))

WORDS = "the a bubble step lease task GPU training waits runs harvests opens closes short long of in and on is".split()


def sentences(count, seed=1):
    import random

    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(3, 24))) for _ in range(count)]


def save_tokenizer(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=160, special_tokens=["<unk>", "<end>", "<pad>"], show_progress=False)
    made.train_from_iterator(sentences(200), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="<end>", pad_token="<pad>")
    tokenizer.save_pretrained(folder)
    return tokenizer


def save_model(folder, kind="llama", seed=1):
    """A tiny model of random weights, wide enough apart that the greedy choice is no matter of rounding."""
    import torch
    import transformers

    tokenizer = save_tokenizer(folder)
    torch.manual_seed(seed)
    shape = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if kind == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=96, bos_token_id=None, **shape)
    else:
        config = transformers.LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=96, bos_token_id=None, initializer_range=0.3, **shape,
        )  # fmt: skip
    made = {"label": transformers.AutoModelForSequenceClassification, "embed": transformers.AutoModel}.get(
        kind, transformers.AutoModelForCausalLM
    )
    if kind == "label":
        config.num_labels, config.id2label = 3, {0: "good", 1: "bad", 2: "neither"}
        config.label2id = {name: number for number, name in config.id2label.items()}
    model = made.from_config(config).eval()
    model.save_pretrained(folder)
    return model, tokenizer
