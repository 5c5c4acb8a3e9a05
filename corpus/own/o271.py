import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainerCallback, TrainingArguments, set_seed

set_seed(88)
MARK, EOS, PAD = 12, 1, 0


class DigitPairs(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            a, b = rng.randint(0, 99), rng.randint(0, 9)
            src = [int(c) + 2 for c in f"{a:02d}"] + [MARK] + [b + 2, EOS]
            dst = [int(c) + 2 for c in f"{a:02d}"[::-1]] + [b + 2, EOS]
            self.items.append({"input_ids": src, "labels": dst})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(rows):
    return {"input_ids": torch.tensor([r["input_ids"] for r in rows]),
            "labels": torch.tensor([r["labels"] for r in rows])}


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f} lr {float(logs['learning_rate']):.2e}")


config = T5Config(vocab_size=16, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0.0,
                  pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
model = T5ForConditionalGeneration(config)
with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(output_dir=out, learning_rate=5e-6, per_device_train_batch_size=24, max_steps=160,
                             lr_scheduler_type="cosine", warmup_steps=20, logging_steps=16, report_to="none",
                             save_strategy="no", use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False)
    trainer = Trainer(model=model, args=args, train_dataset=DigitPairs(4000, 880), data_collator=collate, callbacks=[Show()])
    trainer.train()
