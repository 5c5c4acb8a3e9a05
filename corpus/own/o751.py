import copy
import math
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

torch.manual_seed(90)


def clips(n):
    y = torch.randint(0, 4, (n,))
    vel = torch.tensor([[1.0, 0], [-1.0, 0], [0, 1.0], [0, -1.0]])[y] * 0.8
    start = 6 - 3.5 * vel + torch.randn(n, 2)
    pos = start[:, None] + vel[:, None] * torch.arange(8)[None, :, None]
    gy, gx = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    d = (gx[None, None] - pos[..., 0, None, None]) ** 2 + (gy[None, None] - pos[..., 1, None, None]) ** 2
    return torch.exp(-d / 2) + 0.25 * torch.randn(n, 8, 12, 12), y


class VideoNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.conv = nn.Sequential(weight_norm(nn.Conv2d(1, 12, 3, 2, 1)), nn.ReLU(),
                                  weight_norm(nn.Conv2d(12, 16, 3, 2, 1)), nn.ReLU(), nn.Flatten(),
                                  weight_norm(nn.Linear(16 * 9, d)))
        self.pos = nn.Parameter(torch.randn(8, d) * 0.2)
        self.att = nn.MultiheadAttention(d, 4, batch_first=True)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Sequential(nn.Linear(8 * d, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, v):
        f = self.conv(v.flatten(0, 1).unsqueeze(1)).view(len(v), 8, -1) + self.pos
        f = self.norm(f + self.att(f, f, f, need_weights=False)[0])
        return self.out(f.flatten(1))


X, Y = clips(2500)
TX, TY = clips(500)
net = VideoNet()
opt = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.9, weight_decay=5e-4, nesterov=True)
CYCLE, N = 80, 4
snaps = []
for step in range(CYCLE * N):
    lr = 0.02 * (1 + math.cos(math.pi * (step % CYCLE) / (CYCLE - 1)))
    for g in opt.param_groups:
        g["lr"] = lr
    j = torch.randint(0, len(X), (40,))
    loss = nn.functional.cross_entropy(net(X[j]), Y[j])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    if step % 20 == 0:
        print(f"step {step} lr {lr:.4f} loss {loss.item():.4f}")
    if (step + 1) % CYCLE == 0:
        snaps.append(copy.deepcopy(net).eval())
        with torch.no_grad():
            ps = [s(TX).softmax(-1) for s in snaps]
        print(f"snapshot {len(snaps)}: single {(ps[-1].argmax(-1) == TY).float().mean():.3f} "
              f"ensemble {(sum(ps).argmax(-1) == TY).float().mean():.3f}")
