from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
torch.manual_seed(88)

text = " ".join(" ".join(topics[k].lower().split()) for k in sorted(topics))[:300000]
chars = sorted(set(text))
base = torch.tensor([chars.index(c) for c in text])
CTX, BATCH, DIM = 32, 16, 64


class Adapter(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.down = nn.Linear(dim, rank)
        self.up = nn.Linear(rank, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))


class Block(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc, self.fo = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)
        self.adapter_a, self.adapter_f = nn.Identity(), nn.Identity()

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.adapter_a(self.proj(y))
        return x + self.adapter_f(self.fo(F.gelu(self.fc(self.ln2(x)))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(len(chars), DIM)
        self.pos = nn.Embedding(CTX, DIM)
        self.blocks = nn.ModuleList(Block(DIM) for _ in range(2))
        self.ln_f = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, len(chars), bias=False)
        self.save_memory = False

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for block in self.blocks:
            if self.save_memory:
                x = checkpoint(block, x, use_reentrant=True)
            else:
                x = block(x)
        return self.head(self.ln_f(x))


def train(model, params, data, steps, lr, name):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for step in range(steps):
        at = torch.randint(len(data) - CTX - 1, (BATCH, 1)) + torch.arange(CTX + 1)
        w = data[at]
        loss = F.cross_entropy(model(w[:, :-1]).flatten(0, 1), w[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 15 == 0 or step == steps - 1:
            print(f"{name} {step:3d} loss {loss.item():.4f}")


model = Net()
train(model, list(model.parameters()), base, 90, 3e-3, "pretrain")

for p in model.parameters():
    p.requires_grad_(False)
for block in model.blocks:
    block.adapter_a, block.adapter_f = Adapter(DIM, 16), Adapter(DIM, 16)
for p in model.ln_f.parameters():
    p.requires_grad_(True)
model.save_memory = True
tuned = [p for p in model.parameters() if p.requires_grad]
train(model, tuned, base.flip(0), 110, 4e-3, "finetune")
