import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(33)
torch.set_num_threads(1)


def generate(n, w):
    x = torch.randn(n, 24)
    h = torch.tanh(x @ w[0])
    pos = 0.05 * (h @ w[1]) + 0.002 * torch.randn(n, 2)
    cls = (h @ w[2] + 0.3 * torch.randn(n, 5)).argmax(1)
    cnt = torch.poisson((h @ w[3]).squeeze(1).clamp(-2, 2).exp())
    return x, pos, cls, cnt


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 96), nn.GELU())
        self.pos, self.cls, self.cnt = nn.Linear(96, 2), nn.Linear(96, 5), nn.Linear(96, 1)
        self.log_var = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        h = self.trunk(x)
        return self.pos(h), self.cls(h), self.cnt(h).squeeze(1)

    def objective(self, out, pos, cls, cnt):
        l = torch.stack([
            0.5 * F.mse_loss(out[0].float(), pos) * 2,
            F.cross_entropy(out[1].float(), cls),
            F.poisson_nll_loss(out[2].float(), cnt, log_input=True, full=True)])
        s = self.log_var
        return ((-s).exp() * l + 0.5 * s * torch.tensor([2.0, 1.0, 1.0])).sum(), l.detach()


w = [torch.randn(24, 12) / 5, torch.randn(12, 2), torch.randn(12, 5), torch.randn(12, 1) / 2]
train = TensorDataset(*generate(6000, w))
test = generate(1500, w)
acc = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
net = Net()
heads = [p for n, p in net.named_parameters() if n != "log_var"]
opt = torch.optim.AdamW([{"params": heads, "lr": 3e-3, "weight_decay": 0.01},
                         {"params": [net.log_var], "lr": 2e-2, "weight_decay": 0.0}])
loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
net, opt, loader = acc.prepare(net, opt, loader)


@torch.no_grad()
def evaluate():
    m = acc.unwrap_model(net).eval()
    with acc.autocast():
        p, c, k = m(test[0])
    m.train()
    r2 = 1 - (p.float() - test[1]).pow(2).mean() / test[1].var()
    return r2.item(), (c.argmax(1) == test[2]).float().mean().item(), \
        torch.corrcoef(torch.stack([k.float().exp(), test[3]]))[0, 1].item()


print("before: pos R2 %.3f cls acc %.3f count corr %.3f" % evaluate())
print("majority class %.3f" % (torch.bincount(test[2]).max() / len(test[2])).item())
step = 0
for epoch in range(4):
    for x, pos, cls, cnt in loader:
        with acc.accumulate(net):
            with acc.autocast():
                out = net(x)
            loss, parts = acc.unwrap_model(net).objective(out, pos, cls, cnt)
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(net.parameters(), 10.0)
            opt.step()
            opt.zero_grad()
        if step % 50 == 0:
            print(f"step {step:3d} total {loss.item():+.3f} parts {[round(v, 4) for v in parts.tolist()]} "
                  f"sigma {[round(v, 3) for v in (0.5 * acc.unwrap_model(net).log_var).exp().tolist()]}")
        step += 1
    print("epoch %d: pos R2 %.3f cls acc %.3f count corr %.3f" % (epoch, *evaluate()))
