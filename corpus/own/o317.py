import codecs
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics


class LoRALinear(nn.Module):
    def __init__(self, base, rank=8, alpha=32):
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features ** 0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.A.T) @ self.B.T


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.f1, self.f2 = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.f2(F.gelu(self.f1(self.ln2(x))))


class LM(nn.Module):
    def __init__(self, vocab, d=64, length=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.last = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList([Block(d, 4), Block(d, 4)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.last(F.pad(ids[:, :-1], (1, 0))) + self.pos.weight[: ids.size(1)]
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def encode(text):
    return torch.tensor([min(ord(c), 127) for c in text])


def run(model, data, steps, lr, name):
    params = [p for p in model.parameters() if p.requires_grad]
    print(f"{name}: training {sum(p.numel() for p in params)} of {sum(p.numel() for p in model.parameters())}")
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for i in range(steps):
        at = torch.randint(len(data) - 49, (16, 1))
        w = data[at + torch.arange(49)]
        loss = F.cross_entropy(model(w[:, :-1]).transpose(1, 2), w[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 15 == 0 or i == steps - 1:
            print(f"{name} {i} loss {loss.item():.4f}")


torch.manual_seed(17)
text = "".join(topics[k] for k in sorted(topics)).lower()
model = LM(128)
run(model, encode(text), 110, 3e-3, "base")
model.requires_grad_(False)
for b in model.blocks:
    for name in ("qkv", "o", "f1", "f2"):
        setattr(b, name, LoRALinear(getattr(b, name)))
model.head = LoRALinear(model.head)
run(model, encode(codecs.encode(text, "rot13")), 140, 1e-2, "adapt")
