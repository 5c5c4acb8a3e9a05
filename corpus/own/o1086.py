import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)


class RoundThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class SignThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return torch.where(w >= 0, 1.0, -1.0) * w.abs().mean(1, keepdim=True)

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return grad * (w.abs() <= 1.0)


class BinaryLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, SignThrough.apply(self.weight), self.bias)


class ScalarQuantizer(nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.register_buffer("span", (torch.tensor(levels).float() - 1) / 2)

    def forward(self, z):
        bounded = torch.tanh(z) * self.span
        q = RoundThrough.apply(bounded)
        return q / self.span, q


class SpeechTokenizer(nn.Module):
    def __init__(self, mels=20, dim=64, levels=(5, 5, 5, 5)):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(mels, dim, 4, 2, 1), nn.GELU(), nn.Conv1d(dim, dim, 4, 2, 1), nn.GELU())
        self.ctx = nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.to_code = nn.Linear(dim, len(levels))
        self.quant = ScalarQuantizer(levels)
        self.from_code = nn.Linear(len(levels), dim)
        self.mid = nn.Sequential(BinaryLinear(dim, dim), nn.LayerNorm(dim), nn.GELU(), BinaryLinear(dim, dim))
        self.dec = nn.Sequential(nn.ConvTranspose1d(dim, dim, 4, 2, 1), nn.GELU(), nn.ConvTranspose1d(dim, mels, 4, 2, 1))

    def forward(self, x):
        h = self.ctx(self.enc(x).transpose(1, 2))
        z, code = self.quant(self.to_code(h))
        h = self.from_code(z)
        h = h + self.mid(h)
        return self.dec(h.transpose(1, 2)), code


def speech(n, frames=48, mels=20):
    t = torch.linspace(0, 1, frames)[None]
    m = torch.arange(mels).float()[None, :, None]
    f1 = 4 + 3 * torch.sin(6.28 * (torch.rand(n, 1) * 2 * t + torch.rand(n, 1)))
    f2 = 13 + 4 * torch.sin(6.28 * (torch.rand(n, 1) * 2 * t + torch.rand(n, 1)))
    loud = 0.6 + 0.4 * torch.sin(6.28 * (t + torch.rand(n, 1)))
    x = torch.exp(-(m - f1[:, None]) ** 2 / 4) + 0.8 * torch.exp(-(m - f2[:, None]) ** 2 / 4)
    return x * loud[:, None] + 0.02 * torch.randn(n, mels, frames)


model = SpeechTokenizer()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.0)
for step in range(280):
    x = speech(24)
    recon, code = model(x)
    loss = F.mse_loss(recon, x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 279:
        used = len(torch.unique(code.reshape(-1, 4), dim=0))
        print(f"step {step:4d} recon {loss.item():.5f} codes {used}")
model.eval()
with torch.no_grad():
    v = speech(128)
    print(f"valid recon {F.mse_loss(model(v)[0], v).item():.5f} signal variance {v.var().item():.5f}")
