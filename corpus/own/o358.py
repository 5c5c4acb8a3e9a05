import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from pydoc_data.topics import topics

os.environ["TOKENIZERS_PARALLELISM"] = "false"
set_seed(12)

lines = [l.strip() for k in sorted(topics) for l in topics[k].splitlines()]
lines = [l for l in lines if 20 <= len(l) <= 64]
chars = sorted(set("".join(lines)))
EOS = len(chars)
stoi = {c: i for i, c in enumerate(chars)}


class LineDataset(Dataset):
    def __init__(self, rows):
        self.rows = [[EOS] + [stoi[c] for c in r] + [EOS] for r in rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    width = max(map(len, rows))
    ids = torch.tensor([r + [EOS] * (width - len(r)) for r in rows])
    attention = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])
    labels = ids.clone()
    labels[attention == 0] = -100
    return {"input_ids": ids, "attention_mask": attention, "labels": labels}


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f} lr {float(logs['learning_rate']):.2e}")


model = GPT2LMHeadModel(GPT2Config(vocab_size=EOS + 1, n_positions=80, n_embd=64, n_layer=2, n_head=4,
                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                   bos_token_id=EOS, eos_token_id=EOS, use_cache=False))
args = TrainingArguments(output_dir=tempfile.gettempdir(), max_steps=150, per_device_train_batch_size=8,
                         gradient_accumulation_steps=2, learning_rate=3e-3, lr_scheduler_type="cosine",
                         warmup_steps=12, weight_decay=0.1, max_grad_norm=1.0, logging_steps=10,
                         logging_first_step=True, save_strategy="no", report_to="none", use_cpu=True,
                         disable_tqdm=True, seed=12)
trainer = Trainer(model=model, args=args, train_dataset=LineDataset(lines), data_collator=collate,
                  callbacks=[Printer()])
trainer.train()
