import torch
import torch.nn as nn
import torch.nn.functional as F

HORIZON, BATCH, STEPS, DT = 40, 48, 110, 0.08
CENTRE, SPREAD = torch.tensor([0.0, 0.0, 24.0]), 8.5


def field(s):
    x, y, z = s.unbind(-1)
    return torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], -1)


def orbits(count, sub=8):
    s, h, kept = torch.randn(count, 3) * 7 + CENTRE, DT / sub, []
    for i in range(HORIZON + 13):
        if i >= 12:
            kept.append(s)
        for _ in range(sub):
            a = field(s)
            b = field(s + h / 2 * a)
            c = field(s + h / 2 * b)
            s = s + h / 6 * (a + 2 * b + 2 * c + field(s + h * c))
    return (torch.stack(kept, 1) - CENTRE) / SPREAD


class WorldModel(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.enter, self.mid, self.leave = nn.Linear(3, d), nn.Linear(d, d), nn.Linear(d, 3)

    def forward(self, s):
        h = F.silu(self.enter(s))
        h = h + F.silu(self.mid(h))
        return s + self.leave(h)


def rollout(model, path):
    s, guesses = path[:, 0], []
    for t in range(HORIZON):
        s = model(s)
        guesses.append(s)
    return torch.stack(guesses, 1)


torch.manual_seed(3)
pool = orbits(1500)
model = WorldModel()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(STEPS):
    path = pool[torch.randint(len(pool), (BATCH,))]
    loss = F.mse_loss(rollout(model, path), path[:, 1:])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0 or step == STEPS - 1:
        with torch.no_grad():
            one = F.mse_loss(model(path[:, :-1]), path[:, 1:])
        print(f"step {step:3d}  loss {loss.item():.5g}  one step ahead {one.item():.5f}")
