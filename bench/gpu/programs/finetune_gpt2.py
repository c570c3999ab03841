"""Fine-tuning as transformers' users write it: Trainer, four loader processes, a small GPT-2 with random weights. Prints `steps N`."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        tokens = torch.randint(0, 8000, (256,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Tell(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        print(f"steps {state.global_step}", flush=True)


def main():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8000, n_positions=256, n_layer=8, n_embd=512, n_head=8))
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=8, max_steps=1_000_000, dataloader_num_workers=4, bf16=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=Texts(), callbacks=[Tell()]).train()


if __name__ == "__main__":
    main()
