from dataclasses import dataclass
import math
import torch
from torch import nn, Tensor


@dataclass(frozen=True)
class Hyper:
    ctx: int = 20
    d: int = 48
    comps: int = 3
    lr: float = 2e-3
    updates: int = 320
    ema: float = 0.98


hp = Hyper()
torch.manual_seed(1010)


def sensor(n: int) -> Tensor:
    t = torch.arange(hp.ctx + 1)[None].float()
    x = 0.3 * torch.sin(t * (0.3 + 0.15 * torch.rand(n, 1)) + 6.28 * torch.rand(n, 1))
    flip = torch.where(torch.rand(n) < 0.25, -1.0, 1.0)
    x = torch.cat([x[:, :-1], x[:, -1:] * flip[:, None]], 1)
    return x + 0.01 * torch.randn_like(x)


class MDN(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(1, hp.d)
        self.pos = nn.Parameter(torch.randn(hp.ctx, hp.d) * 0.1)
        lay = nn.TransformerEncoderLayer(hp.d, 4, 96, 0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(lay, 2, enable_nested_tensor=False)
        self.head = nn.Linear(hp.d, 3 * hp.comps)
        with torch.no_grad():
            self.head.bias[hp.comps:2 * hp.comps] = torch.tensor([-0.2, 0.0, 0.2])

    def forward(self, x: Tensor):
        h = self.enc(self.inp(x.unsqueeze(-1)) + self.pos)[:, -1]
        logit, mu, ls = self.head(h).chunk(3, -1)
        return logit.log_softmax(-1), mu, ls.clamp(-5, 2)


def nll(out, y: Tensor) -> Tensor:
    lw, mu, ls = out
    comp = -0.5 * ((y[:, None] - mu) / ls.exp()) ** 2 - ls - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(lw + comp, -1).mean()


net = MDN()
avg = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(hp.ema))
opt = torch.optim.AdamW(net.parameters(), lr=hp.lr)
sched = torch.optim.lr_scheduler.SequentialLR(opt, [
    torch.optim.lr_scheduler.LinearLR(opt, 0.05, total_iters=30),
    torch.optim.lr_scheduler.CosineAnnealingLR(opt, hp.updates - 30, 1e-5)], [30])
val = sensor(800)
for u in range(hp.updates):
    b = sensor(48)
    loss = nll(net(b[:, :-1]), b[:, -1])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    avg.update_parameters(net)
    if u % 40 == 0 or u == hp.updates - 1:
        with torch.no_grad():
            print(f"{u:4d} nll {loss.item():+.3f} averaged-weights val nll {nll(avg(val[:, :-1]), val[:, -1]).item():+.3f}")
