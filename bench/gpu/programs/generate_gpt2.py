"""Greedy generation with a GPT-2 of random weights through transformers' own generate(). Prints "steps N": tokens of
each of 64 sequences."""

import torch
import transformers

config = transformers.GPT2Config(n_layer=12, n_embd=1024, n_head=16, n_positions=1024)
with torch.device("cuda"):
    model = transformers.GPT2LMHeadModel(config).eval().half()
steps = 0
while True:
    prompts = torch.randint(0, 50000, (64, 32), device="cuda")
    with torch.no_grad():
        made = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=16,
            min_new_tokens=16,
            do_sample=False,
            pad_token_id=0,
        )
    steps += len(made[0]) - 32
    print("steps", steps, flush=True)
