import math
import re

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

block_size = 32
n_embd = 64
n_head = 4
n_loops = 4
batch_size = 24
max_iters = 500
learning_rate = 4e-3
warmup_iters = 40
mask_prob = 0.15

text = " ".join(topics[k] for k in sorted(topics))[:400000].lower()
words = re.findall(r"[a-z]+|[^\sa-z]", text)
counts = {}
for w in words:
    counts[w] = counts.get(w, 0) + 1
vocab = ["<mask>", "<unk>"] + sorted(counts, key=lambda w: (-counts[w], w))[:400]
stoi = {w: i for i, w in enumerate(vocab)}
data = torch.tensor([stoi.get(w, 1) for w in words])
split = int(0.9 * len(data))
train_data, val_data = data[:split], data[split:]


def get_batch(source, gen):
    ix = torch.randint(len(source) - block_size, (batch_size,), generator=gen)
    x = torch.stack([source[i:i + block_size] for i in ix])
    pick = (torch.rand(x.shape, generator=gen) < mask_prob) & (x != 1)
    y = torch.where(pick, x, torch.full_like(x, -100))
    swap = torch.rand(x.shape, generator=gen)
    x = torch.where(pick & (swap < 0.9), torch.zeros_like(x), x)
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.c_fc = nn.Linear(n_embd, 2 * n_embd)
        self.c_out = nn.Linear(2 * n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(C, 2)
        q, k, v = (z.view(B, T, n_head, C // n_head).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C)
        x = x + self.c_proj(y)
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x))))


class RecurrentEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(len(vocab), n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        shared = Block()
        self.h = nn.ModuleList([shared] * n_loops)
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, len(vocab), bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.05)
        nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * ratio)))


torch.manual_seed(1337)
gen = torch.Generator().manual_seed(1)
model = RecurrentEncoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.05)
for it in range(max_iters + 1):
    if it % 50 == 0:
        vg = torch.Generator().manual_seed(2)
        with torch.no_grad():
            val = sum(model(*get_batch(val_data, vg)).item() for _ in range(6)) / 6
        print(f"iter {it}: val {val:.4f}" + (f" train {loss.item():.4f}" if it else ""), flush=True)
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    loss = model(*get_batch(train_data, gen))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
