import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(9)
FR, BINS, PHONES = 32, 16, 12
g = torch.Generator().manual_seed(19)
formants = 15 * torch.rand(PHONES, 2, generator=g)


def clips(n):
    ph = torch.randint(0, PHONES, (n, 4), generator=g)
    track = formants[ph].repeat_interleave(FR // 4, 1)
    bins = torch.arange(BINS).float()
    spec = torch.exp(-0.5 * ((bins - track[..., None]) / 1.0) ** 2).sum(2)
    return spec, ph


def augment(x):
    gain = 1 + 0.3 * torch.randn(len(x), 1, 1, generator=g)
    y = x * gain + 0.35 * torch.randn(x.shape, generator=g)
    band = torch.randint(0, BINS - 2, (len(x), 1, 1), generator=g)
    idx = torch.arange(BINS)
    return y.masked_fill((idx >= band) & (idx < band + 2), 0.0)


class Encoder(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.stem = nn.Conv1d(BINS, d, 4, stride=4)
        self.pos = nn.Parameter(0.1 * torch.randn(FR // 4, d))
        self.trunk = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        h = self.stem(x.transpose(1, 2)).transpose(1, 2) + self.pos
        return self.norm(self.trunk(h))


class Pair(nn.Module):

    def __init__(self, d=48):
        super().__init__()
        self.student = nn.Sequential(Encoder(d), nn.Linear(d, 48))
        self.teacher = copy.deepcopy(self.student)
        for p in self.teacher.parameters():
            p.requires_grad_(False)
        self.codes = nn.Parameter(F.normalize(torch.randn(64, 48), dim=-1), requires_grad=False)
        self.predict = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
        self.probe = nn.Linear(d, PHONES)

    @torch.no_grad()
    def follow(self, keep):
        for a, b in zip(self.teacher.parameters(), self.student.parameters()):
            a.lerp_(b, 1 - keep)

    def forward(self, u, v):
        z = self.predict(self.student(u)).mean(1)
        with torch.no_grad():
            w = self.teacher(v).mean(1)
        s = F.normalize(z, dim=-1) @ F.normalize(w, dim=-1).T / 0.1
        agree = F.cross_entropy(s, torch.arange(len(s)))
        soft = F.softmax(F.normalize(w, dim=-1) @ self.codes.T / 0.1, -1)
        agree = agree + 0.1 * F.cross_entropy(F.normalize(z, dim=-1) @ self.codes.T / 0.1, soft)
        return agree

    def probe_loss(self, x, ph):
        feats = self.student[0](x).detach()
        logits = self.probe(feats)
        y = ph.repeat_interleave(2, 1)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten()), (logits.argmax(-1) == y).float().mean()


net = Pair()
opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=2e-3, weight_decay=0.01)
STEPS = 300
for step in range(STEPS):
    x, ph = clips(48)
    ssl = net(augment(x), augment(x))
    sup, acc = net.probe_loss(x, ph)
    loss = ssl + sup
    opt.zero_grad()
    loss.backward()
    opt.step()
    net.follow(0.95 + 0.05 * step / STEPS)
    if step % 30 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.3f} ssl {ssl.item():.3f} probe {sup.item():.3f} acc {acc.item():.3f}")
