import math
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data import topics

torch.manual_seed(1337)

paragraphs = list(dict.fromkeys(p for k in sorted(topics.topics) for p in topics.topics[k].split("\n\n")))
random.Random(0).shuffle(paragraphs)
text = "\n\n".join(paragraphs)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text], dtype=torch.long)
n_train = int(0.9 * len(data))
train_data, val_data = data[:n_train], data[n_train:]

BLOCK, BATCH, STEPS = 64, 12, 350
D, HEADS, LAYERS = 64, 4, 2
LR, MIN_LR, WARMUP = 4e-3, 4e-4, 30


def get_batch(source, generator=None):
    ix = torch.randint(len(source) - BLOCK, (BATCH,), generator=generator)
    offs = ix[:, None] + torch.arange(BLOCK + 1)
    chunk = source[offs]
    return chunk[:, :-1], chunk[:, 1:]


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.proj = nn.Linear(D, D)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(D, dim=2)
        q = q.view(b, t, HEADS, c // HEADS).transpose(1, 2)
        k = k.view(b, t, HEADS, c // HEADS).transpose(1, 2)
        v = v.view(b, t, HEADS, c // HEADS).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1 = nn.LayerNorm(D)
        self.attn = CausalSelfAttention()
        self.ln2 = nn.LayerNorm(D)
        self.fc = nn.Linear(D, 4 * D)
        self.proj = nn.Linear(4 * D, D)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.proj(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, D)
        self.wpe = nn.Embedding(BLOCK, D)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(D)
        self.head = nn.Linear(D, vocab, bias=False)
        self.apply(self._init)
        for name, p in self.named_parameters():
            if name.endswith("proj.weight"):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS))
        self.head.weight = self.wte.weight

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for blk in self.blocks:
            x = blk(x)
        logits = self.head(self.ln_f(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(self, idx, n):
        for _ in range(n):
            logits, _ = self(idx[:, -BLOCK:])
            probs = F.softmax(logits[:, -1] / 0.8, dim=-1)
            idx = torch.cat([idx, torch.multinomial(probs, 1)], dim=1)
        return idx


model = GPT(len(chars))
decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
opt = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}],
    lr=LR, betas=(0.9, 0.95))


def lr_at(step):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    frac = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + 0.5 * (LR - MIN_LR) * (1 + math.cos(math.pi * frac))


@torch.no_grad()
def validate():
    model.eval()
    g = torch.Generator().manual_seed(0)
    losses = [model(*get_batch(val_data, g))[1].item() for _ in range(6)]
    model.train()
    return sum(losses) / len(losses)


t0 = time.time()
for step in range(STEPS):
    for group in opt.param_groups:
        group["lr"] = lr_at(step)
    x, y = get_batch(train_data)
    _, loss = model(x, y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 50 == 0 or step == STEPS - 1:
        print(f"step {step:4d}  train {loss.item():.4f}  val {validate():.4f}  lr {lr_at(step):.2e}  {time.time() - t0:.1f}s")

model.eval()
prompt = torch.tensor([[stoi[c] for c in "The "]])
print("".join(chars[i] for i in model.generate(prompt, 120)[0].tolist()))
