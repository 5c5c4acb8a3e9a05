import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(8)
SYMS, LEN, DIM, HEADS, DEPTH = 20, 12, 64, 4, 2
SEP = SYMS
HD = DIM // HEADS


def spin(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Rotary(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return spin(x, cos, sin)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return spin(grad, cos, -sin), None, None


def tables(n, base=200.0):
    freq = base ** (-torch.arange(0, HD, 2) / HD)
    ang = torch.arange(n)[:, None] * freq
    return ang.cos(), ang.sin()


def init(*shape):
    return nn.Parameter(torch.randn(*shape) * shape[0] ** -0.5)


class Copier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Parameter(torch.randn(SYMS + 1, DIM) * 0.5)
        self.wq = nn.ParameterList(init(DIM, DIM) for _ in range(DEPTH))
        self.wk = nn.ParameterList(init(DIM, DIM) for _ in range(DEPTH))
        self.wv = nn.ParameterList(init(DIM, DIM) for _ in range(DEPTH))
        self.wo = nn.ParameterList(init(DIM, DIM) for _ in range(DEPTH))
        self.f1 = nn.ParameterList(init(DIM, 3 * DIM) for _ in range(DEPTH))
        self.f2 = nn.ParameterList(init(3 * DIM, DIM) for _ in range(DEPTH))
        self.out = init(DIM, SYMS + 1)
        self.gains = nn.Parameter(torch.ones(2 * DEPTH + 1, DIM))

    def forward(self, s):
        b, n = s.shape
        cos, sin = tables(n)
        x = self.emb[s]
        for i in range(DEPTH):
            h = F.rms_norm(x, (DIM,), self.gains[2 * i])
            q = Rotary.apply((h @ self.wq[i]).view(b, n, HEADS, HD).transpose(1, 2), cos, sin)
            k = Rotary.apply((h @ self.wk[i]).view(b, n, HEADS, HD).transpose(1, 2), cos, sin)
            v = (h @ self.wv[i]).view(b, n, HEADS, HD).transpose(1, 2)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + a.transpose(1, 2).reshape(b, n, DIM) @ self.wo[i]
            h = F.rms_norm(x, (DIM,), self.gains[2 * i + 1])
            x = x + F.gelu(h @ self.f1[i]) @ self.f2[i]
        return F.rms_norm(x, (DIM,), self.gains[-1]) @ self.out


def problems(n):
    word = torch.randint(SYMS, (n, LEN))
    return torch.cat([word, torch.full((n, 1), SEP), word], 1)


def score(net, seq):
    logits = net(seq[:, :-1])[:, LEN:]
    want = seq[:, LEN + 1:]
    return F.cross_entropy(logits.reshape(-1, SYMS + 1), want.reshape(-1)), (logits.argmax(-1) == want).float().mean()


net = Copier()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
TOTAL = 320
warm = torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, 20)
for step in range(TOTAL):
    loss, acc = score(net, problems(48))
    loss.backward()
    opt.step()
    opt.zero_grad()
    warm.step()
    if step % 32 == 0 or step == TOTAL - 1:
        print(f"{step:>4} loss={loss.item():.4f} acc={acc.item():.3f}", flush=True)

with torch.no_grad():
    loss, acc = score(net, problems(512))
    print(f"test loss={loss.item():.4f} acc={acc.item():.3f}")
