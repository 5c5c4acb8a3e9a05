import torch
import torch.nn as nn

torch.manual_seed(31)
torch.set_num_threads(1)


def cohort(n):
    x = torch.randn(n, 12)
    risk = 1.2 * torch.sin(1.5 * x[:, 0]) + 0.9 * x[:, 1] * x[:, 2] + 0.6 * x[:, 3].abs()
    t = -torch.rand(n).log() / (0.05 * risk.exp())
    c = -torch.rand(n).log() * 8.0
    return x, torch.minimum(t, c), (t <= c)


def prepare(n):
    x, t, e = cohort(n)
    order = t.argsort(descending=True)
    return x[order], t[order], e[order]


def neg_partial(score, event):
    lse = torch.logcumsumexp(score, 0)
    return -(score - lse)[event].mean()


def concordance(score, t, e):
    i = torch.where(e)[0]
    later = t[None, :] > t[i, None]
    diff = score[i, None] - score[None, :]
    return ((diff > 0).double() + 0.5 * (diff == 0))[later].mean().item()


class Risk(nn.Module):
    def __init__(self, d, h=64):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(d, h), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(h, h), nn.SELU(),
                               nn.Linear(h, 1, bias=False))

    def forward(self, x):
        s = self.f(x).squeeze(-1)
        return s - s.mean()


xt, tt, et = prepare(2500)
xv, tv, ev = prepare(1500)
print(f"events: train {et.float().mean():.2f} valid {ev.float().mean():.2f}")
model = Risk(12)
opt = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=100)

best, keep = 0.0, None
for epoch in range(400):
    model.train()
    loss = neg_partial(model(xt), et)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if epoch % 20 == 0 or epoch == 399:
        model.eval()
        with torch.no_grad():
            s = model(xv)
            c, v = concordance(s, tv, ev), neg_partial(s, ev).item()
        if c > best:
            best, keep = c, {k: p.clone() for k, p in model.state_dict().items()}
        print(f"epoch {epoch:3d} lr {sched.get_last_lr()[0]:.1e} npl {loss.item():.4f} val npl {v:.4f} c-index {c:.4f}")
model.load_state_dict(keep)
model.eval()
xs, ts, es = prepare(1500)
with torch.no_grad():
    print(f"test c-index {concordance(model(xs), ts, es):.4f} "
          f"(best single covariate {max(concordance(xs[:, j], ts, es) for j in range(12)):.4f})")
