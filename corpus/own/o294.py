import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

torch.manual_seed(19)
ITEMS, HISTORY = 120, 12
group = torch.randint(0, 6, (ITEMS,))


def impressions(n):
    taste = torch.randint(0, 6, (n, 1))
    own = torch.rand(n, HISTORY) < 0.75
    pool = torch.randint(0, ITEMS, (n, HISTORY, 12))
    fits = (group[pool] == taste[..., None]).float() + 1e-3 * torch.rand(n, HISTORY, 12)
    fitting = pool.gather(-1, fits.argmax(-1, keepdim=True)).squeeze(-1)
    history = torch.where(own, fitting, torch.randint(0, ITEMS, (n, HISTORY)))
    item = torch.randint(0, ITEMS, (n,))
    like = group[item] == taste.squeeze(1)
    chance = torch.where(like, 0.85, 0.05)
    return history, item, (torch.rand(n) < chance).float()


class ClickModel(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.item = nn.Embedding(ITEMS, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.att = nn.MultiheadAttention(d, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(3 * d, 64), nn.ReLU(), nn.Linear(64, 1))
        nn.init.constant_(self.mlp[-1].bias, -1.4)

    def forward(self, history, item):
        target = self.item(item)
        seq, _ = self.gru(self.item(history))
        ctx, _ = self.att(target[:, None], seq, seq)
        ctx = ctx.squeeze(1)
        return self.mlp(torch.cat((target, ctx, target * ctx), -1)).squeeze(-1)


net = ClickModel()
opt = torch.optim.Adam(net.parameters(), lr=8e-3)
sched = CosineAnnealingWarmRestarts(opt, T_0=40, T_mult=2, eta_min=4e-4)
smooth = []
for step in range(280):
    h, i, y = impressions(128)
    loss = F.binary_cross_entropy_with_logits(net(h, i), y)
    for p in net.parameters():
        p.grad = None
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.02)
    opt.step()
    sched.step()
    smooth = (smooth + [loss.item()])[-20:]
    if step % 20 == 19:
        print(f"step {step:3d} bce {sum(smooth) / len(smooth):.4f} grad {norm.item():.3f} clicks {y.mean().item():.2f} lr {sched.get_last_lr()[0]:.1e}")
