import io

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(50)
VOC, L, DIM = 36, 28, 64
world = torch.Generator().manual_seed(2)
JUMP = torch.stack([9 * s + torch.randperm(VOC, generator=world) % 9 for s in range(4)])


def make(n, gen):
    style = torch.randint(4, (n,), generator=gen)
    x = torch.randint(VOC, (n, L), generator=gen)
    for t in range(1, L):
        hold = torch.rand(n, generator=gen) < 0.6
        x[:, t] = torch.where(hold, JUMP[style, x[:, t - 1]], x[:, t])
    return x, style


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOC, DIM)
        self.pos = nn.Parameter(0.02 * torch.randn(L, DIM))
        enc = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(enc, 2, nn.LayerNorm(DIM), enable_nested_tensor=False)

    def forward(self, x):
        T = x.size(1)
        m = nn.Transformer.generate_square_subsequent_mask(T)
        return self.blocks(self.tok(x) + self.pos[:T], mask=m, is_causal=True)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.lm = nn.Linear(DIM, VOC)

    def forward(self, x):
        return self.lm(self.backbone(x))


class StyleClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.styles = nn.Linear(DIM, 4)

    def forward(self, x):
        return self.styles(self.backbone(x).mean(1))


def schedule(opt, steps, warm):
    return torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / warm) * max(0.05, 1 - i / steps))


def lm_phase(model, steps, lr, warm, gen, name):
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    sched = schedule(opt, steps, warm)
    for i in range(steps):
        x, _ = make(24, gen)
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if i % 20 == 0 or i == steps - 1:
            print(f"{name} {i:4d} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")


gen = torch.Generator().manual_seed(3)
first = Generator()
lm_phase(first, 110, 3e-3, 10, gen, "lm-a")
disk = io.BytesIO()
torch.save(first.state_dict(), disk)

disk.seek(0)
second = Generator()
second.load_state_dict(torch.load(disk))
lm_phase(second, 80, 1e-3, 20, gen, "lm-b")

clf = StyleClassifier()
report = clf.load_state_dict(second.state_dict(), strict=False)
print("missing:", report.missing_keys, "unexpected:", report.unexpected_keys)
for p in clf.backbone.parameters():
    p.requires_grad = False
opt = torch.optim.AdamW(clf.styles.parameters(), lr=1e-2)
test_x, test_s = make(400, torch.Generator().manual_seed(4))
for i in range(100):
    x, s = make(32, gen)
    loss = F.cross_entropy(clf(x), s)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 20 == 0 or i == 99:
        with torch.no_grad():
            acc = (clf(test_x).argmax(-1) == test_s).float().mean().item()
        print(f"style {i:4d} loss {loss.item():.4f} test acc {acc:.3f}")
