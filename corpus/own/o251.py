import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(510)
HALF, VOCAB = 12, 30
g = torch.Generator().manual_seed(511)
noise = torch.randint(0, VOCAB, (9000, HALF), generator=g)
data = TensorDataset(torch.cat([noise, noise], 1))
loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)


class SharedLayer(nn.Module):
    def __init__(self, d=64, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.fc = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, mask):
        h = self.ln1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.fc(self.ln2(x))


class Recycler(nn.Module):
    def __init__(self, d=64, rounds=3):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(2 * HALF, d)
        self.layer = SharedLayer(d)
        self.rounds = rounds
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, VOCAB)
        nn.init.normal_(self.tok.weight, std=0.5)

    def forward(self, ids):
        t = ids.size(1)
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        x = self.tok(ids) + self.pos.weight[:t]
        for _ in range(self.rounds):
            x = self.layer(x, mask)
        return self.out(self.norm(x))


model = Recycler()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
for step, (ids,) in enumerate(loader):
    for group in optimizer.param_groups:
        group["lr"] = 2e-3 * min(1.0, (step + 1) / 30)
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == 259:
        copied = (logits[:, HALF:].argmax(-1) == ids[:, HALF + 1:]).float().mean().item()
        print(f"step {step:3d} loss {loss.item():.1f} grad {norm.item():.1f} copied {copied:.2f}")
    if step == 259:
        break
