import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
G = torch.Generator().manual_seed(211)
CONCEPTS, WORDS, LEN, PATCHES, PDIM = 120, 300, 12, 9, 20
codebook = torch.randn(CONCEPTS, PDIM, generator=G)
lexicon = torch.randint(WORDS, (CONCEPTS, 3), generator=G)


def pairs(n):
    what = torch.stack([torch.randperm(CONCEPTS, generator=G)[:3] for _ in range(n)])
    slots = torch.rand(n, PATCHES, generator=G).argsort(1)[:, :3]
    image = 0.3 * torch.randn(n, PATCHES, PDIM, generator=G)
    image.scatter_add_(1, slots.unsqueeze(-1).expand(-1, -1, PDIM), codebook[what])
    names = lexicon[what].flatten(1)
    filler = torch.randint(WORDS, (n, LEN - 9), generator=G)
    caption = torch.cat([names, filler], 1)
    caption = caption.gather(1, torch.rand(n, LEN, generator=G).argsort(1))
    return image, caption


class Tower(nn.Module):
    def __init__(self, stem, length, d=64, out=48):
        super().__init__()
        self.stem = stem
        self.pos = nn.Parameter(0.02 * torch.randn(length, d))
        self.enc = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(d)
        self.proj = nn.Linear(d, out, bias=False)

    def forward(self, x):
        h = self.enc(self.stem(x) + self.pos)
        return F.normalize(self.proj(self.norm(h.mean(1))), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.visual = Tower(nn.Linear(PDIM, d), PATCHES, d)
        self.textual = Tower(nn.Embedding(WORDS, d), LEN, d)
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image, caption):
        v, t = self.visual(image), self.textual(caption)
        sim = self.logit_scale.exp().clamp(max=100) * v @ t.t()
        return sim.softmax(dim=-1), sim.t().softmax(dim=-1)


model = DualEncoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4, weight_decay=0.02)
BATCH, STEPS = 64, 150
labels = torch.arange(BATCH)
for step in range(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = 8e-4 * min(1.0, (step + 1) / 20)
    image, caption = pairs(BATCH)
    per_image, per_text = model(image, caption)
    loss = 0.5 * (F.cross_entropy(per_image, labels) + F.cross_entropy(per_text, labels))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == STEPS - 1:
        r1 = (per_image.argmax(1) == labels).float().mean().item()
        print(f"step {step:3d}  loss {loss.item():.4f}  R@1 {r1:.3f}")
with torch.no_grad():
    per_image, _ = model(*pairs(256))
    print(f"held-out R@1 of 256: {(per_image.argmax(1) == torch.arange(256)).float().mean().item():.3f}")
