import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from pydoc_data.topics import topics

torch.manual_seed(61)


class LoRALinear(nn.Module):
    def __init__(self, base, r=16, alpha=32):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(r, base.in_features) / r ** 0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.a.t()) @ self.b.t() * self.scale


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        y = self.ln1(x)
        q, k, v = (f(y).view(b, t, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Base(nn.Module):
    def __init__(self, vocab, ctx, d=64, h=4, depth=3):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(depth))
        self.ln = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab)
        self.checkpointing = False

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[:ids.size(1)]
        for block in self.blocks:
            if self.checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=True)
            else:
                x = block(x)
        return self.lm_head(self.ln(x))


def add_adapters(model, names=("q", "v", "o", "up", "down")):
    for p in model.parameters():
        p.requires_grad_(False)
    for block in model.blocks:
        for n in names:
            setattr(block, n, LoRALinear(getattr(block, n)))
    for p in model.lm_head.parameters():
        p.requires_grad_(True)
    return model


text = "".join(topics[k] for k in sorted(topics))
alphabet = sorted(set(text))
table = {c: i for i, c in enumerate(alphabet)}
ids = torch.tensor([table[c] for c in text])
CTX, BATCH = 40, 12

model = add_adapters(Base(len(alphabet), CTX))
model.checkpointing = True
model.train()
trainable = [p for p in model.parameters() if p.requires_grad]
print(f"trainable {sum(p.numel() for p in trainable):,} of {sum(p.numel() for p in model.parameters()):,}")
optimizer = torch.optim.AdamW(trainable, lr=3e-3, weight_decay=0.0)
recent = []
for step in range(160):
    at = torch.randint(len(ids) - CTX - 1, (BATCH,))
    rows = ids[at[:, None] + torch.arange(CTX + 1)]
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    recent = (recent + [loss.item()])[-10:]
    if step % 16 == 0 or step == 159:
        print(f"step {step} loss {sum(recent) / len(recent):.4f}")
