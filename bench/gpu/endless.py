"""The side tasks generate and evaluate without an end, without files and with models of random weights: what they take of a
GPU does not depend on the weights. A side task is one file, so what is measured is the task's own file with a class more.

    endless.py FOLDER      writes generate.py and evaluate.py there"""

import pathlib
import sys

PLUGINS = pathlib.Path(__file__).resolve().parents[2] / "plugins"

CONFIG = """

def model_config(task):
    return transformers.LlamaConfig(
        hidden_size=task.width, intermediate_size=4 * task.width, num_hidden_layers=task.layers,
        num_attention_heads=max(1, task.width // 128), num_key_value_heads=max(1, task.width // 512),
        max_position_embeddings=1024, vocab_size=32000, bos_token_id=None, eos_token_id=None,
    )


def half(task):
    return torch.float32 if task.torch_device == "cpu" else torch.bfloat16
"""
GENERATE = """

class EndlessGenerate(Generate):
    "Generates without an end, with random weights."
    layers = Param(16, "of the model", (1, 96))
    width = Param(2048, "of the model", (64, 16384))
    prompt = Param(64, "tokens of the longest prompt", (2, 512))

    def CreateSideTask(self):
        self.most_at_once, self.ends, self.number = self.sequences, set(), 0
        self.joining, self.running, self.made = collections.deque(), {}, 0
        self.limit = self.length or 1024

    def InitSideTask(self):
        torch.manual_seed(1)
        with torch.device(self.torch_device):
            self.net = transformers.LlamaForCausalLM(model_config(self)).eval().to(half(self))
        super().InitSideTask()

    def RunNextStep(self):
        while len(self.joining) + len(self.running) < self.sequences:
            self.number += 1
            tokens = 1 + self.number * 7 % self.prompt
            self.joining.append(Sequence([1 + (self.number + at) % 30000 for at in range(tokens)]))
        self.step()

    def metric(self, name, value):
        SideTask.metric(self, name, value)

    def take(self, one, token):
        one.made.append(token)
        self.made += 1
        if len(one.made) < self.most_new:
            return []
        del self.running[one.slot]
        self.free.append(one.slot)
        return [(one, None)]
"""
EVALUATE = """

class EndlessEvaluate(Evaluate):
    "Evaluates one model of random weights without an end."
    layers = Param(16, "of the model", (1, 96))
    width = Param(2048, "of the model", (64, 16384))

    def CreateSideTask(self):
        self.number = 0

    def InitSideTask(self):
        torch.set_grad_enabled(False)
        torch.manual_seed(1)
        with torch.device(self.torch_device):
            self.net = transformers.LlamaForCausalLM(model_config(self)).eval().to(half(self))
        self.net.config.use_cache = False
        self.make_graphs()

    def RunNextStep(self):
        self.number += 1
        items = [[1 + (self.number + at) % 30000 for at in range(self.length)] for _ in range(self.batch)]
        self.score_items(items)
"""


def write(folder):
    folder = pathlib.Path(folder)
    for name, more in (("generate", GENERATE), ("evaluate", EVALUATE)):
        text = (PLUGINS / name / f"{name}.py").read_text()
        if name == "generate":
            text = text.replace("Stream, TaskError", "SideTask, Stream, TaskError")
        (folder / f"{name}.py").write_text(text + CONFIG + more)


if __name__ == "__main__":
    write(sys.argv[1])
