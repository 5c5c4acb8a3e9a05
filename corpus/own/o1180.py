import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(1337)

text = "\n\n".join(topics.values())[:500000]
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])
n = int(0.9 * len(data))
splits = {"train": data[:n], "val": data[n:]}

block_size, batch_size, n_embd, n_head, n_layer = 64, 12, 96, 4, 3
max_iters, warmup, lr, min_lr = 330, 40, 2e-3, 1e-4


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(n_embd, dim=2)
        q, k, v = (z.view(B, T, n_head, C // n_head).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd, bias=False), nn.LayerNorm(n_embd, bias=False)
        self.attn = CausalSelfAttention()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.c_proj = nn.Linear(4 * n_embd, n_embd, bias=False)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd, bias=False)
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02
                nn.init.normal_(p, std=std)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for b in self.h:
            x = b(x)
        x = self.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1]]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    @torch.no_grad()
    def generate(self, idx, count, temperature=0.8, top_k=20):
        for _ in range(count):
            logits = self(idx[:, -block_size:])[0][:, -1] / temperature
            v, _ = torch.topk(logits, top_k)
            logits[logits < v[:, [-1]]] = -float("inf")
            idx = torch.cat([idx, torch.multinomial(logits.softmax(-1), 1)], 1)
        return idx


def get_batch(split):
    d = splits[split]
    ix = torch.randint(len(d) - block_size, (batch_size,))
    return (
        torch.stack([d[i : i + block_size] for i in ix]),
        torch.stack([d[i + 1 : i + 1 + block_size] for i in ix]),
    )


def get_lr(it):
    if it < warmup:
        return lr * (it + 1) / (warmup + 1)
    return min_lr + 0.5 * (lr - min_lr) * (
        1 + math.cos(math.pi * (it - warmup) / (max_iters - warmup))
    )


model = GPT(len(chars))
decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}],
    lr=lr,
    betas=(0.9, 0.99),
)

for it in range(max_iters + 1):
    for g in optimizer.param_groups:
        g["lr"] = get_lr(it)
    if it % 110 == 0:
        model.eval()
        with torch.no_grad():
            est = {s: sum(model(*get_batch(s))[1].item() for _ in range(10)) / 10 for s in splits}
        model.train()
        print(f"iter {it} train {est['train']:.4f} val {est['val']:.4f}", flush=True)
    total = 0.0
    for micro in range(2):
        _, loss = model(*get_batch("train"))
        loss = loss / 2
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if it % 20 == 0:
        print(f"iter {it}: loss {total:.4f}, lr {get_lr(it):.2e}", flush=True)

model.eval()
print(
    "".join(chars[i] for i in model.generate(torch.zeros(1, 1, dtype=torch.long), 150)[0].tolist())
)
