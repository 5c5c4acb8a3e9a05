import torch
from torch import nn

torch.manual_seed(21)


def simulate(n, d=12):
    x = torch.randn(n, d)
    risk = 0.9 * x[:, 0] - 0.7 * x[:, 1] + 0.8 * x[:, 2] * x[:, 3] + 0.6 * (x[:, 4].abs() - 0.8)
    t_event = (-torch.log(torch.rand(n)) / (0.1 * risk.exp())) ** (1 / 1.4)
    t_cens = -torch.log(torch.rand(n)) * 9.0
    time = torch.minimum(t_event, t_cens)
    event = (t_event <= t_cens).float()
    return x, time, event, risk


def cox_loss(eta, time, event):
    order = torch.argsort(time, descending=True)
    eta, event = eta[order], event[order]
    log_risk = torch.logcumsumexp(eta, 0)
    return -((eta - log_risk) * event).sum() / event.sum().clamp_min(1)


@torch.no_grad()
def concordance(eta, time, event):
    comparable = (time[:, None] < time[None, :]) & (event[:, None] == 1)
    better = (eta[:, None] > eta[None, :]).float() + 0.5 * (eta[:, None] == eta[None, :]).float()
    return (better * comparable).sum().item() / comparable.sum().item()


class RiskNet(nn.Module):
    def __init__(self, d, width=64, p=0.1):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, width), nn.SELU(), nn.AlphaDropout(p),
                                  nn.Linear(width, width), nn.SELU(), nn.AlphaDropout(p))
        self.head = nn.Linear(width, 1, bias=False)
        for m in self.body:
            if isinstance(m, nn.Linear):
                nn.init.kaiming_normal_(m.weight, nonlinearity="linear")
                nn.init.zeros_(m.bias)
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


x, t, e, true_risk = simulate(9000)
tr, va, te = slice(0, 6000), slice(6000, 7500), slice(7500, 9000)
print(f"events: {e.mean():.1%}; C-index of the true risk on test: {concordance(true_risk[te], t[te], e[te]):.4f}")

net = RiskNet(x.shape[1])
opt = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=5e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 300, eta_min=1e-4)
best, best_state = 0.0, None
for step in range(300):
    net.train()
    idx = torch.randperm(6000)[:1200]
    loss = cox_loss(net(x[idx]), t[idx], e[idx])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 50 == 0 or step == 299:
        net.eval()
        with torch.no_grad():
            c = concordance(net(x[va]), t[va], e[va])
            val = cox_loss(net(x[va]), t[va], e[va]).item()
        if c > best:
            best, best_state = c, {k: v.clone() for k, v in net.state_dict().items()}
        print(f"step {step:3d} loss {loss.item():.4f} | val loss {val:.4f} C {c:.4f}")

net.load_state_dict(best_state)
net.eval()
with torch.no_grad():
    print(f"test C-index {concordance(net(x[te]), t[te], e[te]):.4f}")
