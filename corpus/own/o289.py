import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(55)
SIDE, CODES, DIM = 16, 64, 24


class Nearest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, book):
        idx = torch.cdist(z, book).argmin(-1)
        ctx.save_for_backward(idx, book)
        ctx.mark_non_differentiable(idx)
        return book[idx], idx

    @staticmethod
    def backward(ctx, grad, _):
        return grad, None


def scenes(n):
    yy, xx = torch.meshgrid(torch.arange(SIDE).float(), torch.arange(SIDE).float(), indexing="ij")
    img = torch.zeros(n, SIDE, SIDE)
    for _ in range(2):
        c = torch.rand(n, 2, 1, 1) * SIDE
        w = 2 + 2 * torch.rand(n, 1, 1)
        img = img + torch.exp(-((xx - c[:, 0]) ** 2 + (yy - c[:, 1]) ** 2) / w ** 2)
    return img[:, None] - 0.2


class Tokenizer(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, c, 4, 2, 1), nn.GELU(), nn.Conv2d(c, c, 3, 1, 1), nn.GELU(), nn.Conv2d(c, DIM, 4, 2, 1))
        self.dec = nn.Sequential(nn.ConvTranspose2d(DIM, c, 4, 2, 1), nn.GELU(), nn.Conv2d(c, c, 3, 1, 1), nn.GELU(), nn.ConvTranspose2d(c, 1, 4, 2, 1))
        self.register_buffer("book", torch.randn(CODES, DIM) * 0.1)
        self.register_buffer("size", torch.ones(CODES))
        self.register_buffer("total", self.book.clone())

    def forward(self, x):
        z = self.enc(x).permute(0, 2, 3, 1)
        flat = z.reshape(-1, DIM)
        q, idx = Nearest.apply(flat, self.book)
        if self.training:
            self.update(flat.detach(), idx)
        commit = F.mse_loss(flat, q.detach())
        return self.dec(q.view_as(z).permute(0, 3, 1, 2)), commit, idx

    @torch.no_grad()
    def update(self, flat, idx, decay=0.95):
        hot = F.one_hot(idx, CODES).float()
        self.size.mul_(decay).add_(hot.sum(0), alpha=1 - decay)
        self.total.mul_(decay).add_(hot.t() @ flat, alpha=1 - decay)
        self.book.copy_(self.total / self.size.clamp(min=1e-3)[:, None])
        idle = self.size < 0.2
        if idle.any():
            pick = flat[torch.randint(len(flat), (int(idle.sum()),))]
            self.book[idle], self.total[idle], self.size[idle] = pick, pick, 1.0


net = Tokenizer()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(180):
    x = scenes(24)
    y, commit, idx = net(x)
    rec = F.mse_loss(y, x)
    loss = rec + 0.25 * commit
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 15 == 0 or step == 179:
        print(f"step {step} loss {loss.item():.5f} rec {rec.item():.5f} codes {idx.unique().numel()}")
