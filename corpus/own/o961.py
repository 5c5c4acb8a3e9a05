import torch
import torch.nn as nn

torch.manual_seed(70)
torch.set_default_dtype(torch.float64)
VISITS, LABS = 6, 5


def cohort(n, g):
    base = torch.randn(n, 1, LABS, generator=g)
    slope = 0.4 * torch.randn(n, 1, LABS, generator=g)
    t = torch.arange(VISITS).view(1, -1, 1) / VISITS
    x = base + slope * t * 3 + 0.3 * torch.randn(n, VISITS, LABS, generator=g)
    risk = 1.2 * x[:, -1, 0] + 1.0 * (x[:, -1, 1] - x[:, 0, 1]) - 0.8 * x[:, :, 2].mean(1)
    event_time = -torch.log(torch.rand(n, generator=g)) * torch.exp(-risk)
    censor_time = -torch.log(torch.rand(n, generator=g)) * 3.0
    time = torch.minimum(event_time, censor_time)
    event = event_time <= censor_time
    order = time.argsort(descending=True)
    return x[order], time[order], event[order]


def cox_loss(risk, event):
    return -(risk - torch.logcumsumexp(risk, 0))[event].mean()


def concordance(risk, time, event):
    earlier = (time[:, None] < time[None]) & event[:, None]
    return ((risk[:, None] > risk[None]) & earlier).sum().item() / earlier.sum().item()


class VisitEncoder(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.inp = nn.Linear(LABS, d)
        self.time = nn.Parameter(0.1 * torch.randn(VISITS, d))
        layer = nn.TransformerEncoderLayer(d, 2, 32, 0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(d, 1, bias=False)

    def forward(self, x):
        return self.head(self.enc(self.inp(x) + self.time).mean(1)).squeeze(-1)


g = torch.Generator().manual_seed(70)
x, time, event = cohort(1200, g)
xv, tv, ev = cohort(400, g)
xt, tt, et = cohort(600, g)
model = VisitEncoder()
opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.02)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 160)
best, best_state = 0.0, None
for epoch in range(1, 161):
    model.train()
    loss = cox_loss(model(x), event)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if epoch % 10 == 0:
        model.eval()
        with torch.no_grad():
            c = concordance(model(xv), tv, ev)
        if c > best:
            best, best_state = c, {k: v.clone() for k, v in model.state_dict().items()}
        print(f"epoch {epoch} partial likelihood {loss.item():.4f} valid c-index {c:.4f}")
model.load_state_dict(best_state)
model.eval()
with torch.no_grad():
    print(f"test c-index {concordance(model(xt), tt, et):.4f}")
