import math
import time
import torch
import torch.nn as nn
from torch.nn import functional as F
from pydoc_data.topics import topics

batch_size = 12
block_size = 64
n_layer, n_head, n_embd = (2, 4, 64)
dropout = 0.05
max_iters = 360
eval_interval = 10
eval_iters = 2
learning_rate = 0.004
min_lr = 0.0004
warmup_iters = 30
weight_decay = 0.1
grad_clip = 1.0
torch.manual_seed(1337)
torch.set_num_threads(1)
text = "\n\n".join((topics[k] for k in sorted(topics)))
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
itos = {i: c for c, i in stoi.items()}
data = torch.tensor([stoi[c] for c in text], dtype=torch.long)
n = int(0.9 * len(data))
train_data, val_data = (data[:n], data[n:])
vocab_size = len(chars)


def get_batch(split, generator=None):
    src = train_data if split == "train" else val_data
    ix = torch.randint(len(src) - block_size - 1, (batch_size,), generator=generator)
    x = torch.stack([src[i : i + block_size] for i in ix])
    y = torch.stack([src[i + 1 : i + 1 + block_size] for i in ix])
    return (x, y)


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(n_embd, dim=2)
        q = q.view(B, T, n_head, C // n_head).transpose(1, 2)
        k = k.view(B, T, n_head, C // n_head).transpose(1, 2)
        v = v.view(B, T, n_head, C // n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=dropout if self.training else 0.0
        )
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.GELU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
            if getattr(m, "bias", None) is not None:
                nn.init.zeros_(m.bias)

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.size(1))
        x = self.wte(idx) + self.wpe(pos)
        for blk in self.h:
            x = blk(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return (logits, None)
        return (logits, F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1)))


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": weight_decay}, {"params": nodecay, "weight_decay": 0.0}],
    lr=learning_rate,
    betas=(0.9, 0.95),
)


@torch.no_grad()
def estimate_loss():
    model.eval()
    torch.manual_seed(4242)
    out = {}
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            x, y = get_batch(split)
            losses[k] = model(x, y)[1].item()
        out[split] = losses.mean().item()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


t0 = time.time()
for it in range(max_iters):
    if it % eval_interval == 0:
        est = estimate_loss()
        if it % 60 == 0:
            print(f"step {it}: train {est['train']:.3f}, val {est['val']:.3f}")
    for g in optimizer.param_groups:
        g["lr"] = get_lr(it)
    x, y = get_batch("train")
    _, loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    if it % 30 == 0 or it == max_iters - 1:
        print(f"iter {it}: loss {loss.item():.4f}, lr {get_lr(it):.2e}, {time.time() - t0:.1f}s")
est = estimate_loss()
print(f"final: train {est['train']:.4f}, val {est['val']:.4f}")
model.eval()
idx = torch.tensor([[stoi[c] for c in "The "]])
for _ in range(120):
    logits, _ = model(idx[:, -block_size:])
    probs = F.softmax(logits[:, -1] / 0.8, dim=-1)
    idx = torch.cat([idx, torch.multinomial(probs, 1)], dim=1)
print("".join((itos[i] for i in idx[0].tolist())))
