import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(19)
WORDS = 20
COLORS = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1]]).float()


def pairs(n):
    c = torch.randint(6, (n, 2))
    q = torch.rand(n, 4).argsort(1)[:, :2]
    img = 0.1 * torch.randn(n, 3, 12, 12)
    for j in range(2):
        for quad in range(4):
            r, s = divmod(quad, 2)
            hit = (q[:, j] == quad).float().view(-1, 1, 1, 1)
            img[:, :, r * 6 + 1:r * 6 + 5, s * 6 + 1:s * 6 + 5] += hit * COLORS[c[:, j]].view(-1, 3, 1, 1)
    swap = torch.rand(n) < 0.5
    first = torch.where(swap[:, None], torch.stack([c[:, 1], q[:, 1]], 1), torch.stack([c[:, 0], q[:, 0]], 1))
    second = torch.where(swap[:, None], torch.stack([c[:, 0], q[:, 0]], 1), torch.stack([c[:, 1], q[:, 1]], 1))
    text = torch.stack([first[:, 0], first[:, 1] + 6, torch.full((n,), 10), second[:, 0], second[:, 1] + 6], 1)
    key = (c + 6 * q).sort(1).values
    return img, text, key[:, 0] * 24 + key[:, 1]


class Tower(nn.Module):
    def __init__(self, kind, dim=48, out=32):
        super().__init__()
        self.kind = kind
        self.inp = nn.Conv2d(3, dim, 6, 6) if kind == "image" else nn.Embedding(WORDS, dim)
        self.pos = nn.Parameter(0.1 * torch.randn(1, 4 if kind == "image" else 5, dim))
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, out, bias=False)

    def forward(self, x):
        h = self.inp(x)
        if self.kind == "image":
            h = h.flatten(2).transpose(1, 2)
        h = h + self.pos
        for layer in self.body:
            h = layer(h)
        return F.normalize(self.proj(self.norm(h).mean(1)), dim=-1)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.log = nn.Parameter(torch.tensor(2.66))

    def forward(self, a, b):
        return self.log.exp().clamp(max=100) * a @ b.t()


def contrastive(logits):
    target = torch.arange(len(logits))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


image, text, scale = Tower("image"), Tower("text"), Scale()
params = [*image.parameters(), *text.parameters(), *scale.parameters()]
opt = torch.optim.AdamW(params, lr=2e-3, weight_decay=0.05)
val_img, val_txt, val_key = pairs(128)
BATCH, CHUNK = 64, 16
for step in range(180):
    img, txt, _ = pairs(BATCH)
    img_chunks, txt_chunks = img.split(CHUNK), txt.split(CHUNK)
    with torch.no_grad():
        zi = torch.cat([image(c) for c in img_chunks])
        zt = torch.cat([text(c) for c in txt_chunks])
    zi, zt = zi.requires_grad_(), zt.requires_grad_()
    loss = contrastive(scale(zi, zt))
    opt.zero_grad()
    loss.backward()
    for c, g in zip(img_chunks, zi.grad.split(CHUNK)):
        image(c).backward(g)
    for c, g in zip(txt_chunks, zt.grad.split(CHUNK)):
        text(c).backward(g)
    opt.step()
    if step % 10 == 0 or step == 179:
        with torch.no_grad():
            logits = scale(image(val_img), text(val_txt))
            top1 = (val_key[logits.argmax(1)] == val_key).float().mean().item()
        print(f"step {step:4d} loss {loss.item():.4f} scale {scale.log.exp().item():.2f} retrieval {top1:.3f}")
