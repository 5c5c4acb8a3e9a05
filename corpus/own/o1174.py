import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(1337)

text = "\n".join(topics[k] for k in sorted(topics))[:400000]
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
split = int(0.9 * len(data))
train_data, val_data = data[:split], data[split:]

MAX_LEN = 96


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = Attention(d, h)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class CharLM(nn.Module):
    def __init__(self, vocab, d=80, h=4, n=3):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(MAX_LEN, d)
        self.blocks = nn.ModuleList([Block(d, h) for _ in range(n)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        nn.init.normal_(self.tok.weight, std=0.02)
        nn.init.normal_(self.pos.weight, std=0.02)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        for b in self.blocks:
            x = b(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(source, length, batch, gen=None):
    starts = torch.randint(len(source) - length - 1, (batch,), generator=gen)
    x = torch.stack([source[s:s + length] for s in starts])
    y = torch.stack([source[s + 1:s + length + 1] for s in starts])
    return x, y


@torch.no_grad()
def evaluate(model, length):
    model.eval()
    gen = torch.Generator().manual_seed(7)
    losses = [model(*get_batch(val_data, length, 32, gen)).item() for _ in range(6)]
    model.train()
    return sum(losses) / len(losses)


stages = [
    dict(length=16, batch=48, steps=120),
    dict(length=48, batch=16, steps=160),
    dict(length=96, batch=12, steps=200),
]

model = CharLM(len(chars))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.05)
total = sum(s["steps"] for s in stages)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer,
    lambda i: min((i + 1) / 40, 0.5 * (1 + math.cos(math.pi * min(1.0, i / total))) + 0.05),
)

step = 0
for number, stage in enumerate(stages):
    best_loss, best_model = float("inf"), None
    for i in range(stage["steps"]):
        x, y = get_batch(train_data, stage["length"], stage["batch"])
        loss = model(x, y)
        model.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        step += 1
        if step % 20 == 0:
            print(f"stage {number} step {step} loss {loss.item():.4f}", flush=True)
        if (i + 1) % 40 == 0:
            val = evaluate(model, stage["length"])
            if val < best_loss:
                best_loss = val
                best_model = copy.deepcopy(model)
    model.load_state_dict(best_model.state_dict())
    print(f"stage {number} done, length {stage['length']}, best val {best_loss:.4f}", flush=True)

print(f"final val loss {evaluate(model, MAX_LEN):.4f}")
