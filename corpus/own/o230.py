import inspect
import random
import tempfile
import json as j1
import argparse as a1
import ast as a2
import heapq as h1

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

set_seed(77)
source = "".join(inspect.getsource(m) for m in (a1, a2, h1, j1))
letters = sorted(set(source))
stoi = {c: i for i, c in enumerate(letters)}
encoded = torch.tensor([stoi[c] for c in source])
WIDTH = 64


class Chunks(Dataset):
    def __init__(self, ids, count):
        r = random.Random(5)
        self.starts = [r.randrange(len(ids) - WIDTH) for _ in range(count)]
        self.ids = ids

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        row = self.ids[self.starts[i]:self.starts[i] + WIDTH]
        return {"input_ids": row, "labels": row.clone()}


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f} lr {float(logs['learning_rate']):.2e}")


config = LlamaConfig(
    vocab_size=len(letters), hidden_size=64, intermediate_size=160, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    bos_token_id=None, eos_token_id=None, pad_token_id=None, tie_word_embeddings=False)
model = LlamaForCausalLM(config)
args = TrainingArguments(
    output_dir=tempfile.gettempdir(), per_device_train_batch_size=12, max_steps=180, learning_rate=8e-2,
    lr_scheduler_type="constant_with_warmup", warmup_steps=20, weight_decay=0.0, max_grad_norm=1.0,
    logging_steps=10, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, dataloader_num_workers=0)
trainer = Trainer(model=model, args=args, train_dataset=Chunks(encoded, 4000), callbacks=[Printer()])
trainer.remove_callback(PrinterCallback)
trainer.train()
