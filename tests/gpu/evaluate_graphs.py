"""The side task evaluate on a real GPU: with a CUDA graph for each layer it finds the same sums as without, for batches of
several shapes, for weights that are read anew, and for models of several makes; and a step is fewer launches.

    python3 evaluate_graphs.py [--plugins DIR] [--out FILE]

Needs torch and transformers. Exit code 1 if something is not as it must be."""

import argparse
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.append(str(HERE.parents[2] / "plugin-api/python"))


def models(transformers):
    few = {"vocab_size": 1000, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    llama = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    yield "llama", transformers.LlamaConfig(**few, **llama, num_key_value_heads=2, max_position_embeddings=512)
    yield "gpt2", transformers.GPT2Config(**few, n_embd=256, n_layer=4, n_head=4, n_positions=200)
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    yield "mixtral", transformers.MixtralConfig(**few, **llama, **experts)
    yield "gemma2", transformers.Gemma2Config(**few, **llama, num_key_value_heads=2, head_dim=64, sliding_window=64)


def batches(torch):
    """Texts of random lengths: full batches, a smaller last one, and one that is as wide as texts may be."""
    dice = torch.Generator().manual_seed(3)
    for count, most in ((8, 60), (8, 190), (8, 60), (3, 100), (8, 199)) * 8:
        lengths = [*torch.randint(2, most, (count - 1,), generator=dice).tolist(), most]
        yield [torch.randint(1, 1000, (length,), generator=dice).tolist() for length in lengths]


def task_of(evaluate, net, graphs):
    said = []
    task = evaluate.Evaluate()
    task.device, task.net, task.graphs, task.length, task.layer_graphs = "gpu-0", net, graphs, 200, None
    task.log = said.append
    task.make_graphs()
    return task, said


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plugins", default=HERE.parents[2] / "plugins/evaluate")
    parser.add_argument("--out")
    options = parser.parse_args()
    sys.path.append(str(options.plugins))
    import evaluate
    import torch
    import transformers

    torch.set_grad_enabled(False)
    found, wrong = {}, 0
    for name, config in models(transformers):
        config.use_cache = False
        torch.manual_seed(1)
        net = transformers.AutoModelForCausalLM.from_config(config).eval().cuda().half()
        plain, _ = task_of(evaluate, net, graphs=False)
        without = [plain.score_items(items) for items in batches(torch)]
        task, said = task_of(evaluate, net, graphs=True)
        with_graphs = [task.score_items(items) for items in batches(torch)]
        for weight in net.state_dict().values():  # the next checkpoint
            if weight.dtype == torch.float16:
                weight.mul_(1.25)
        begin = time.perf_counter()
        with_graphs += [task.score_items(items) for items in batches(torch)]
        took_with = time.perf_counter() - begin
        shapes = [shape for shape in task.layer_graphs.shapes.values() if shape]
        captured = sum(len(shape.graphs) for shape in shapes)
        task.layer_graphs.close()
        begin = time.perf_counter()
        without += [plain.score_items(items) for items in batches(torch)]
        took_without = time.perf_counter() - begin
        apart = max(abs(one["loss"] - other["loss"]) / other["loss"] for one, other in zip(with_graphs, without))
        same = all(one["tokens"] == other["tokens"] for one, other in zip(with_graphs, without))
        good = same and apart < 2e-3 and (captured > 0 or bool(said))
        wrong += not good
        found[name] = {
            "good": good, "apart": apart, "shapes": len(shapes), "graphs": captured, "said": said,
            "ms_with": round(1e3 * took_with, 1), "ms_without": round(1e3 * took_without, 1),
        }  # fmt: skip
        print("ok   " if good else "WRONG", name, json.dumps(found[name]), flush=True)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(found, indent=1))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
