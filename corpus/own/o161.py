import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(90)

N_ATTR, N_VAL, GRID = 4, 6, 6
PALETTE = torch.randn(N_ATTR, N_VAL, 12)


def batch(n):
    attrs = torch.randint(0, N_VAL, (n, N_ATTR))
    img = torch.randn(n, GRID, 12) * 0.3
    for a in range(N_ATTR):
        img[:, a] += PALETTE[a][attrs[:, a]]
    img = img.gather(1, torch.rand(n, GRID).argsort(1)[..., None].expand(-1, -1, 12))
    cap = attrs + torch.arange(N_ATTR) * N_VAL
    cap = cap.gather(1, torch.rand(n, N_ATTR).argsort(1))
    return img, cap


def stack(d, layers):
    layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d), enable_nested_tensor=False)


class TwoTower(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.patch = nn.Linear(12, d)
        self.vision = stack(d, 2)
        self.words = nn.Embedding(N_ATTR * N_VAL, d)
        self.text = stack(d, 1)
        self.vproj = nn.Linear(d, d, bias=False)
        self.tproj = nn.Linear(d, d, bias=False)
        self.temperature = 0.07

    def forward(self, img, cap):
        v = F.normalize(self.vproj(self.vision(self.patch(img)).mean(1)), dim=-1)
        t = F.normalize(self.tproj(self.text(self.words(cap)).mean(1)), dim=-1)
        scores = v @ t.T / self.temperature
        return scores.softmax(dim=1), scores.softmax(dim=0).T


def contrastive(per_image, per_text):
    labels = torch.arange(per_image.size(0))
    return (F.cross_entropy(per_image, labels) + F.cross_entropy(per_text, labels)) / 2


model = TwoTower()
optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(optim, 1e-3, total_steps=200, pct_start=0.1)
for it in range(200):
    loss = contrastive(*model(*batch(64)))
    optim.zero_grad()
    loss.backward()
    optim.step()
    sched.step()
    if it % 20 == 0 or it == 199:
        with torch.no_grad():
            img, cap = batch(128)
            acc = (model(img, cap)[0].argmax(1) == torch.arange(128)).float().mean().item()
        print(f"it {it:3d}  loss {loss.item():.4f}  retrieval {acc:.3f}")
