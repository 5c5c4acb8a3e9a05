import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
S, D, N = 4, 48, 24


def scenes(n):
    c = torch.rand(n, 3, 2) * 4 - 2
    which = torch.randint(0, 3, (n, N))
    pts = c.gather(1, which[..., None].expand(-1, -1, 2)) + 0.1 * torch.randn(n, N, 2)
    return pts, which


class SlotModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(2, D), nn.ReLU(), nn.Linear(D, D), nn.LayerNorm(D))
        self.mu = nn.Parameter(torch.randn(1, S, D))
        self.q, self.k, self.v = nn.Linear(D, D, False), nn.Linear(D, D, False), nn.Linear(D, D, False)
        self.gru = nn.GRUCell(D, D)
        self.nq = nn.LayerNorm(D)
        self.dec = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, 2))

    def forward(self, pts):
        x = self.inp(pts)
        k, v = self.k(x), self.v(x)
        s = self.mu.expand(len(pts), -1, -1)
        for _ in range(3):
            logits = torch.einsum("bnd,bsd->bns", k, self.q(self.nq(s))) * D ** -0.5
            a = F.softmax(logits, dim=-1) + 1e-6
            w = a / a.sum(dim=1, keepdim=True)
            upd = torch.einsum("bns,bnd->bsd", w, v)
            s = self.gru(upd.flatten(0, 1), s.flatten(0, 1)).view(s.shape)
        return self.dec(s), a


model = SlotModule()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
test, _ = scenes(500)


def cover(pts, out):
    d = torch.cdist(pts, out)
    return d.amin(-1).pow(2).mean()


for step in range(401):
    pts, _ = scenes(64)
    out, a = model(pts)
    loss = cover(pts, out)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 50 == 0:
        with torch.no_grad():
            print(f"step {step} loss {loss.item():.4f} test coverage error {cover(test, model(test)[0]).item():.4f}")
