import random
import re
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(51)
random.seed(51)
PIECES = ["\n===", "===", "\n", " Question", " Answer", ":", " "]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB = ["<pad>", "<s>", "</s>"] + PIECES + list(LETTERS) + list("?.,0123456789")
IDS = {p: i for i, p in enumerate(VOCAB)}
SCAN = re.compile("|".join(re.escape(p) for p in sorted(VOCAB[3:], key=len, reverse=True)))


def encode(text):
    return [IDS[p] for p in SCAN.findall(text)]


def word(n):
    return "".join(random.choice("bdfgklmnprst") + random.choice("aeiou") for _ in range(n))


FACTS = [(word(3), word(2)) for _ in range(48)]
ASKS = ["what is the word for {}?", "how do they say {}?", "please translate {}."]
TEMPLATE = encode("=== Answer:")


class Dialogues(Dataset):
    def __init__(self, n):
        self.rows = []
        for _ in range(n):
            a, b = random.choice(FACTS)
            ask = random.choice(ASKS).format(a)
            self.rows.append(f"=== Question: {ask}\n=== Answer: {b}.")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return [1] + encode(self.rows[i]) + [2]


def find(ids, part):
    for i in range(len(ids) - len(part) + 1):
        if ids[i:i + len(part)] == part:
            return i + len(part)
    return len(ids)


def completion_only(rows):
    width = max(len(r) for r in rows)
    ids, mask, labels = [], [], []
    for r in rows:
        gap = width - len(r)
        start = find(r, TEMPLATE)
        ids.append(r + [0] * gap)
        mask.append([1] * len(r) + [0] * gap)
        labels.append([-100] * start + r[start:] + [-100] * gap)
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


config = LlamaConfig(vocab_size=len(VOCAB), hidden_size=64, intermediate_size=160, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                     pad_token_id=0, bos_token_id=1, eos_token_id=2)
model = LlamaForCausalLM(config)
args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=100, per_device_train_batch_size=16,
                         learning_rate=3e-3, warmup_steps=10, lr_scheduler_type="cosine", logging_steps=10,
                         logging_first_step=True, save_strategy="no", report_to=[], disable_tqdm=True,
                         use_cpu=True, dataloader_num_workers=0, seed=51, remove_unused_columns=False)
trainer = Trainer(model=model, args=args, train_dataset=Dialogues(3000), data_collator=completion_only)
trainer.train()
