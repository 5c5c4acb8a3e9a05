import os
import random
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["WANDB_DISABLED"] = "true"

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments, set_seed

torch.set_num_threads(1)
set_seed(23)

AA = "ACDEFGHIKLMNPQRSTVWY"
PAD, CLS, EOS, MASK = 0, 1, 2, 3
OFFSET = 4
VOCAB = OFFSET + len(AA)
MOTIFS = ["HEXXHG", "GKSTLY", "CPWCQE", "DFGRNA", "NPXYWL", "KDELVI"]


def make_family(rng):
    base = []
    while len(base) < 40:
        m = rng.choice(MOTIFS)
        base += [rng.choice(AA) if c == "X" else c for c in m]
        base += [rng.choice("AGSL")] * rng.randint(1, 3)
    return base[:rng.randint(30, 40)]


class ProteinSet(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            s = make_family(rng)
            s = [c if rng.random() > 0.03 else rng.choice(AA) for c in s]
            self.rows.append([CLS] + [OFFSET + AA.index(c) for c in s] + [EOS])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


class ResidueMaskCollator:
    def __init__(self, prob=0.15, seed=0):
        self.prob = prob
        self.gen = torch.Generator().manual_seed(seed)

    def __call__(self, examples):
        n = max(len(e["input_ids"]) for e in examples)
        ids = torch.full((len(examples), n), PAD)
        for i, e in enumerate(examples):
            ids[i, : len(e["input_ids"])] = torch.tensor(e["input_ids"])
        attention = (ids != PAD).long()
        special = ids < OFFSET
        p = torch.full(ids.shape, self.prob).masked_fill(special, 0.0)
        chosen = torch.bernoulli(p, generator=self.gen).bool()
        labels = torch.where(chosen, ids, torch.full_like(ids, -100))
        to_mask = chosen & (torch.rand(ids.shape, generator=self.gen) < 0.8)
        ids[to_mask] = MASK
        to_random = chosen & ~to_mask & (torch.rand(ids.shape, generator=self.gen) < 0.5)
        ids[to_random] = torch.randint(OFFSET, VOCAB, ids.shape, generator=self.gen)[to_random]
        return {"input_ids": ids, "attention_mask": attention, "labels": labels}


@torch.no_grad()
def recover_one_residue(model, rows):
    model.eval()
    hit = tot = 0
    for row in rows:
        x = torch.tensor(row)
        pos = torch.arange(3, len(row) - 3, 4)
        batch = x.repeat(len(pos), 1)
        batch[torch.arange(len(pos)), pos] = MASK
        out = model(input_ids=batch).logits[torch.arange(len(pos)), pos]
        hit += (out.argmax(-1) == x[pos]).sum().item()
        tot += len(pos)
    model.train()
    return hit / tot


def main():
    train, held = ProteinSet(3000, 1), ProteinSet(60, 2)
    cfg = BertConfig(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
                     intermediate_size=96, max_position_embeddings=48, pad_token_id=PAD,
                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForMaskedLM(cfg)
    args = TrainingArguments(output_dir="/tmp/protein_bert_a", per_device_train_batch_size=24,
                             num_train_epochs=4, learning_rate=3e-3, warmup_steps=60, weight_decay=0.01,
                             logging_steps=50, save_strategy="no", report_to=[], disable_tqdm=True,
                             use_cpu=True, seed=23, dataloader_num_workers=0)
    trainer = Trainer(model=model, args=args, train_dataset=train, data_collator=ResidueMaskCollator())
    print("recovery before training", round(recover_one_residue(model, held.rows), 3))
    out = trainer.train()
    print("mean training loss", round(out.training_loss, 4))
    print("recovery after training", round(recover_one_residue(model, held.rows), 3))


if __name__ == "__main__":
    main()
