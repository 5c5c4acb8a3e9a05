import random
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import OneCycleLR
from transformers import BertConfig, BertForMaskedLM

random.seed(31)
torch.manual_seed(31)
WORDS = """river stone garden window market silver copper yellow purple orange winter summer spring
mother father sister brother kitchen blanket candle mirror ladder bridge castle forest desert island""".split()
ALPHABET = " abcdefghijklmnopqrstuvwxyz"
MASK, LENGTH = len(ALPHABET), 40


def line():
    s = ""
    while len(s) < LENGTH:
        s += random.choice(WORDS) + " "
    return [ALPHABET.index(c) for c in s[:LENGTH]]


def mlm_batch(n):
    ids = torch.tensor([line() for _ in range(n)])
    chosen = torch.rand(ids.shape) < 0.15
    labels = ids.masked_fill(~chosen, -100)
    dice = torch.rand(ids.shape)
    ids = ids.masked_fill(chosen & (dice < 0.8), MASK)
    rand = torch.randint(MASK, ids.shape)
    ids = torch.where(chosen & (dice > 0.9), rand, ids)
    return ids, labels


config = BertConfig(vocab_size=MASK + 1, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=192, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0)
bert = BertForMaskedLM(config)
base_lr, epochs, per_epoch = 3e-3, 6, 40
optimizer = torch.optim.AdamW(bert.parameters(), lr=base_lr, weight_decay=0.01)
schedule = OneCycleLR(optimizer, max_lr=base_lr * 25, total_steps=epochs * per_epoch, pct_start=0.3)
for epoch in range(epochs):
    seen = []
    for i in range(per_epoch):
        ids, labels = mlm_batch(16)
        loss = bert(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(bert.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        seen.append(loss.item())
        if i % 20 == 0:
            print(f"epoch {epoch} batch {i} loss {sum(seen[-5:]) / len(seen[-5:]):.4f}")
print(f"end loss {sum(seen[-10:]) / 10:.4f}")
