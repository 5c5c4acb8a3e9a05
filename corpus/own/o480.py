import torch
from torch import nn

gen = torch.Generator().manual_seed(77)
torch.manual_seed(77)


def simulate(n):
    x = torch.randn(n, 12, generator=gen)
    risk = 1.2 * x[:, 0] - 0.8 * x[:, 1] + 1.5 * torch.tanh(x[:, 2] * x[:, 3])
    u = torch.rand(n, generator=gen).clamp_min(1e-6)
    t_event = (-u.log() / (0.1 * risk.exp())) ** 0.7
    t_cens = -torch.rand(n, generator=gen).clamp_min(1e-6).log() * 8.0
    t = torch.minimum(t_event, t_cens)
    d = (t_event <= t_cens).float()
    order = torch.argsort(t, descending=True)
    return x[order], t[order], d[order]


def cox_loss(score, event):
    lse = torch.logcumsumexp(score, 0)
    return -((score - lse) * event).sum() / event.sum()


def c_index(score, t, d, m=2000):
    i = torch.randint(0, len(t), (m * 20,), generator=gen)
    j = torch.randint(0, len(t), (m * 20,), generator=gen)
    ok = (t[i] < t[j]) & (d[i] > 0)
    return (score[i] > score[j])[ok].float().mean().item()


def main():
    x, t, d = simulate(3000)
    xv, tv, dv = simulate(2000)
    print("censored:", 1 - d.mean().item())
    net = nn.Sequential(
        nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(64, 1, bias=False),
    )
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)
    best, best_state = -1.0, None
    for step in range(240):
        net.train()
        loss = cox_loss(net(x).squeeze(-1), d)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == 239:
            net.eval()
            with torch.no_grad():
                s = net(xv).squeeze(-1)
                vl, c = cox_loss(s, dv).item(), c_index(s, tv, dv)
            if c > best:
                best, best_state = c, {k: v.clone() for k, v in net.state_dict().items()}
            print(f"step {step:3d}  partial nll {loss.item():.4f}  val nll {vl:.4f}  val C {c:.4f}")
    net.load_state_dict(best_state)
    print("best C-index", round(best, 4))


if __name__ == "__main__":
    main()
