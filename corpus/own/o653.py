import math

import torch
import torch.nn as nn
from torch.nn import functional as F

block_size, vocab_size = 32, 32
n_embd, n_head, n_layer = 64, 4, 2
micro_batch_size, gradient_accumulation_steps = 8, 5
max_iters, warmup_iters = 125, 10
learning_rate, min_lr = 3e-3, 3e-6
weight_decay, grad_clip = 0.1, 1.0

torch.manual_seed(1337)
gen = torch.Generator().manual_seed(1338)


def make_stream(n):
    nxt = torch.stack([torch.randperm(vocab_size, generator=gen) for _ in range(4)])
    seq = [0, 1]
    coin = torch.rand(n, generator=gen)
    rnd = torch.randint(0, vocab_size, (n,), generator=gen)
    for i in range(n - 2):
        a, b = seq[-2], seq[-1]
        seq.append(int(nxt[a % 4, b]) if coin[i] > 0.1 else int(rnd[i]))
    return torch.tensor(seq)


data = make_stream(40000)
train_data, val_data = data[:36000], data[36000:]


def get_batch(split, n):
    d = train_data if split == "train" else val_data
    ix = torch.randint(len(d) - block_size - 1, (n,), generator=gen)
    x = torch.stack([d[i : i + block_size] for i in ix])
    y = torch.stack([d[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (z.view(B, T, n_head, C // n_head).transpose(1, 2) for z in self.c_attn(x).split(n_embd, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.04)
            if isinstance(m, nn.Linear) and m.bias is not None:
                nn.init.zeros_(m.bias)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
plain = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}],
    lr=learning_rate,
    betas=(0.9, 0.95),
)


def lr_lambda(it):
    if it < warmup_iters:
        return (it + 1) / warmup_iters
    r = min(1.0, (it - warmup_iters) / (max_iters - warmup_iters))
    floor = min_lr / learning_rate
    return floor + 0.5 * (1 + math.cos(math.pi * r)) * (1 - floor)


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda)

for it in range(max_iters):
    total = 0.0
    optimizer.zero_grad(set_to_none=True)
    for micro in range(gradient_accumulation_steps):
        X, Y = get_batch("train", micro_batch_size)
        loss = model(X, Y) / gradient_accumulation_steps
        loss.backward()
        total += loss.item()
        scheduler.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    if it % 10 == 0 or it == max_iters - 1:
        with torch.no_grad():
            val = model(*get_batch("val", 64)).item()
        print(f"iter {it}: loss {total:.4f}, val {val:.4f}")
