#!/usr/bin/env python3
"""A reinforcement-learning loop in the manner of GRPO, whose rollouts are idle phases of the training's device.

    python3 grpo.py --iterations 4
    python3 grpo.py --device cuda --rollout-s 2,8,20      # a policy of GPT-2's size

A policy, a small GPT over digits, learns to answer with digits that grow. Each iteration has three parts:

1. rollout: another process, the generator, gets the weights and samples a group of answers to each prompt. Training's device
   has nothing to do until they come. `freeride.idle("rollout")` says so, and nothing else of FreeRide is in this file;
2. reward: the share of neighbouring digits that grow; an answer's advantage is its reward against its group's;
3. update: `--epochs` steps with PPO's clipped objective.

The generator samples on the CPU, and a rollout takes at least as long as --rollout-s says, as with a generator on other
machines. All is deterministic for a given --seed: two runs on one machine have the same losses to the bit, with side tasks in
the rollouts or without. Needs torch 1.13 or later.
"""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import sys
import time

os.environ.setdefault(
    "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
)  # deterministic products, for which it must be set before CUDA is

import torch
from torch import nn

try:
    import freeride
except ImportError:  # then it is the same training without side tasks
    freeride = None

DIGITS, BEGIN, VOCABULARY = 10, 10, 11
SIZES = {"tiny": (2, 2, 32), "small": (4, 4, 128), "gpt2": (12, 12, 768)}  # layers, heads, width


class Block(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        shape = batch, length, 3, self.heads, width // self.heads
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        mask = torch.full((length, length), float("-inf"), device=x.device).triu(1)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5 + mask
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Policy(nn.Module):
    def __init__(self, size, longest):
        super().__init__()
        layers, heads, width = SIZES[size]
        self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*[Block(heads, width) for _ in range(layers)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def forward(self, tokens):
        return self.head(self.blocks(self.token(tokens) + self.place.weight[: tokens.shape[1]]))


def log_probabilities(policy, tokens, prompt):
    """Of each token of the answers."""
    logits = policy(tokens[:, :-1])[:, prompt - 1 :]
    return logits.log_softmax(-1).gather(-1, tokens[:, prompt:, None]).squeeze(-1)


# ---- the generator, a process of its own -----------------------------------------------------------------------------------------


def generate(connection, options):
    """Answers each (iteration, seconds, weights, prompts) with tokens, until there are no more."""
    torch.set_num_threads(options.threads)
    policy = Policy(options.size, options.prompt + options.answer)
    with torch.no_grad():
        while True:
            try:
                asked = connection.recv()
            except EOFError:  # training has ended
                return
            iteration, rollout_s, weights, prompts = asked
            began = time.monotonic()
            policy.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
            draws = torch.Generator().manual_seed(options.seed * 100_003 + iteration)
            tokens = torch.from_numpy(prompts).repeat_interleave(options.group, 0)
            for _ in range(options.answer):
                chances = policy(tokens)[:, -1].softmax(-1)
                tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=draws)], 1)
            time.sleep(max(0.0, rollout_s - (time.monotonic() - began)))
            connection.send(tokens.numpy())


# ---- training ------------------------------------------------------------------------------------------------------------------


def rewards(tokens, prompt):
    answers = tokens[:, prompt:]
    return (answers[:, 1:] > answers[:, :-1]).float().mean(1)


def advantages(reward, group):
    by_group = reward.view(-1, group)
    return ((by_group - by_group.mean(1, True)) / (by_group.std(1, unbiased=False, keepdim=True) + 1e-4)).view(-1)


def rollout_phase(options):
    return freeride.idle("rollout") if freeride and options.hook == "on" else contextlib.nullcontext()


def train(options, connection):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    policy = Policy(options.size, options.prompt + options.answer).to(options.device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=options.lr)
    draws = torch.Generator().manual_seed(options.seed)
    log = open(options.log_json, "w", buffering=1) if options.log_json else None
    began = time.monotonic()
    for iteration in range(options.iterations) if options.iterations else itertools.count():
        rollout_s = options.rollout_s[iteration % len(options.rollout_s)]
        begin_ns = time.monotonic_ns()
        prompts = torch.randint(DIGITS, (options.prompts, options.prompt), generator=draws)
        prompts[:, 0] = BEGIN
        # Copied, so that the device has nothing to do when the phase begins
        weights = {name: tensor.cpu().numpy() for name, tensor in policy.state_dict().items()}

        with rollout_phase(options):
            connection.send((iteration, rollout_s, weights, prompts.numpy()))
            tokens = torch.from_numpy(connection.recv())
        rollout_ns = time.monotonic_ns()

        reward = rewards(tokens, options.prompt)
        tokens, advantage = tokens.to(options.device), advantages(reward, options.group).to(options.device)
        with torch.no_grad():
            before = log_probabilities(policy, tokens, options.prompt)
        losses = []
        for _ in range(options.epochs):
            ratio = (log_probabilities(policy, tokens, options.prompt) - before).exp()
            gain = torch.minimum(ratio * advantage[:, None], ratio.clamp(0.8, 1.2) * advantage[:, None])
            chances = policy(tokens[:, :-1])[:, options.prompt - 1 :].log_softmax(-1)
            entropy = -(chances.exp() * chances).sum(-1).mean()
            loss = -gain.mean() - 0.01 * entropy
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        loss = sum(one.item() for one in losses) / len(losses)
        line = {"iteration": iteration, "loss": loss, "reward": reward.mean().item(), "rollout_s": rollout_s}
        times = {"begin_ns": begin_ns, "rollout_end_ns": rollout_ns, "end_ns": time.monotonic_ns()}
        print(json.dumps(line), flush=True)
        if log:
            log.write(json.dumps({**line, **times}) + "\n")
        if options.seconds and time.monotonic() - began >= options.seconds:
            break


def lengths(text):
    return [float(word) for word in text.split(",")]


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--iterations", type=int, default=0, help="0: no limit; default 20 where --seconds says nothing, either"
    )
    parser.add_argument(
        "--seconds", type=float, default=0, help="end with the iteration that is then under way (0: no limit)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--size", choices=SIZES, help="of the policy; default: small, or gpt2 (12 layers of width 768) with cuda"
    )
    parser.add_argument(
        "--rollout-s",
        type=lengths,
        default=[2.0],
        help="a rollout takes at least so many seconds; several take turns, as in 2,8,20",
    )
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=4, help="tokens of a prompt")
    parser.add_argument("--group", type=int, default=4, help="answers to each prompt")
    parser.add_argument("--answer", type=int, default=8, help="tokens of an answer")
    parser.add_argument(
        "--epochs", type=int, default=0, help="optimizer's steps in an iteration; default: 4, or 32 with cuda"
    )
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--threads", type=int, default=0, help="of the generator; default: 1, or half of the processors with cuda"
    )
    parser.add_argument("--log-json", default="", help="a line for each iteration, with its loss and times")
    parser.add_argument("--hook", choices=["on", "off"], default="on", help="off: no phase is marked")
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    options.iterations = options.iterations or (0 if options.seconds else 20)
    options.size = options.size or ("gpt2" if on_gpu else "small")
    options.epochs = options.epochs or (32 if on_gpu else 4)
    options.threads = options.threads or (max(1, (os.cpu_count() or 1) // 2) if on_gpu else 1)
    return options


def main():
    options = parse(sys.argv[1:])
    processes = multiprocessing.get_context("spawn")
    connection, theirs = processes.Pipe()
    generator = processes.Process(target=generate, args=(theirs, options), daemon=True)
    generator.start()
    theirs.close()
    train(options, connection)
    connection.close()
    generator.join()


if __name__ == "__main__":
    main()
