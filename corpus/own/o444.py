import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(13)
K_ATTR, N_VAL, IMG, CAP = 5, 8, 48, 5

basis = torch.randn(K_ATTR, N_VAL, IMG)
mixer = torch.randn(IMG, IMG) / IMG ** 0.5


def build(n, gen):
    attrs = torch.randint(0, N_VAL, (n, K_ATTR), generator=gen)
    img = sum(basis[k, attrs[:, k]] for k in range(K_ATTR)) / K_ATTR ** 0.5
    img = torch.tanh(img @ mixer) + 0.1 * torch.randn(n, IMG, generator=gen)
    cap = attrs + torch.arange(K_ATTR) * N_VAL
    return img, cap


class PairStore:
    """Keeps the two modalities in separate arrays, like two memory-mapped shards."""

    def __init__(self, img, cap, batch):
        self.shards = {"image": img, "text": cap}
        self.batch = batch

    def __len__(self):
        return len(self.shards["image"]) // self.batch

    def epoch(self):
        n = len(self.shards["image"])
        order = torch.randperm(n)
        streams = {name: shard[order].split(self.batch) for name, shard in self.shards.items()}
        yield from zip(streams["image"], streams["text"])


class ImageTower(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(IMG, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128),
                                 nn.GELU(), nn.Linear(128, d))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class TextTower(nn.Module):
    def __init__(self, d, width=48):
        super().__init__()
        self.emb = nn.Embedding(K_ATTR * N_VAL, width)
        self.pos = nn.Parameter(0.02 * torch.randn(CAP, width))
        self.blk = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(width, d)

    def forward(self, t):
        return F.normalize(self.out(self.blk(self.emb(t) + self.pos).mean(1)), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.image, self.text = ImageTower(d), TextTower(d)
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, img, cap):
        sim = self.log_scale.exp().clamp(max=100) * self.image(img) @ self.text(cap).T
        gold = torch.arange(len(img))
        return 0.5 * (F.cross_entropy(sim, gold) + F.cross_entropy(sim.T, gold)), sim


def recall_at_1(model, img, cap):
    with torch.no_grad():
        _, sim = model(img, cap)
    return (sim.argmax(1) == torch.arange(len(img))).float().mean().item()


gen = torch.Generator().manual_seed(99)
train_img, train_cap = build(4096, gen)
val_img, val_cap = build(256, gen)
store = PairStore(train_img, train_cap, 128)
model = DualEncoder()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)

step = 0
for epoch in range(12):
    for img, cap in store.epoch():
        loss, _ = model(img, cap)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 16 == 0:
            print(f"epoch {epoch} step {step} contrastive loss {loss.item():.4f}", flush=True)
        step += 1
print(f"val recall@1 {recall_at_1(model, val_img, val_cap):.4f}")
