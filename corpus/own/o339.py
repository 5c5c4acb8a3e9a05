import torch
import torch.nn as nn
import torch.nn.functional as F


class Binarize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1).to(grad.dtype)


def blobs(n, gen):
    axis = torch.linspace(-1, 1, 16)
    cx, cy = (torch.rand(2, n, 1, 1, generator=gen) * 1.2 - 0.6)
    size = 0.1 + 0.15 * torch.rand(n, 1, 1, generator=gen)
    d = (axis.view(1, 1, -1) - cx) ** 2 + (axis.view(1, -1, 1) - cy) ** 2
    return torch.exp(-d / size).unsqueeze(1)


class HashAutoencoder(nn.Module):
    def __init__(self, bits=48, ch=16):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, ch, 3, 2, 1), nn.BatchNorm2d(ch), nn.ReLU(),
            nn.Conv2d(ch, 2 * ch, 3, 2, 1), nn.BatchNorm2d(2 * ch), nn.ReLU(),
            nn.Flatten(), nn.Linear(2 * ch * 16, bits), nn.BatchNorm1d(bits))
        self.dec = nn.Sequential(
            nn.Linear(bits, 2 * ch * 16), nn.ReLU(), nn.Unflatten(1, (2 * ch, 4, 4)),
            nn.ConvTranspose2d(2 * ch, ch, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(ch, 1, 4, 2, 1))

    def forward(self, x):
        code = Binarize.apply(self.enc(x))
        return self.dec(code), code


def run():
    gen = torch.Generator().manual_seed(14)
    torch.manual_seed(14)
    net = HashAutoencoder()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-7)
    net.train()
    for it in range(1, 221):
        x = blobs(48, gen)
        y, code = net(x)
        loss = F.mse_loss(y, x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it == 1 or it % 20 == 0:
            balance = code.mean(0).abs().mean().item()
            print(f"it {it:3d} mse {loss.item():.5f} bit bias {balance:.3f}")
    net.eval()
    with torch.no_grad():
        x = blobs(200, gen)
        print(f"held-out mse {F.mse_loss(net(x)[0], x).item():.5f} variance {x.var().item():.5f}")


run()
