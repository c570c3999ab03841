"""Text generation as one would write it without bubbles in mind: eager Transformers, one token of every sequence a step,
no yield points. The weights are random: what is measured does not depend on them."""

import torch
from freeride_plugin import Param, SideTask
from transformers import GPT2Config, GPT2LMHeadModel


class EagerGeneration(SideTask):
    "Generates text with a GPT-2 of random weights, greedily."

    layers = Param(16, "of the model", (1, 96))
    width = Param(2048, "of the model", (64, 16384))
    sequences = Param(64, "generated side by side", (1, 4096))
    prompt = Param(32, "tokens of each prompt", (1, 1024))
    length = Param(256, "tokens of each sequence, prompt included", (2, 1024))

    def CreateSideTask(self):
        self.config = GPT2Config(
            n_layer=self.layers, n_embd=self.width, n_head=max(1, self.width // 128), n_positions=1024, use_cache=True
        )

    def InitSideTask(self):
        torch.manual_seed(1)
        with torch.device(self.torch_device):
            self.model = GPT2LMHeadModel(self.config).eval()
        if self.torch_device != "cpu":
            self.model.half()
        self.cache, self.tokens, self.made = None, None, 0

    @torch.no_grad()
    def RunNextStep(self):
        if self.cache is None:
            self.tokens = torch.randint(0, 50000, (self.sequences, self.prompt), device=self.torch_device)
        output = self.model(self.tokens, past_key_values=self.cache, use_cache=True)
        self.cache, self.tokens = output.past_key_values, output.logits[:, -1:].argmax(-1)
        if self.cache.get_seq_length() >= self.length:
            self.cache = None
        self.made += len(self.tokens.tolist())  # waits for the GPU
        self.metric("tokens", self.made)
