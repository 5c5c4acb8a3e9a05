import torch, torch.nn as nn, torch.nn.functional as F, math, time

"""diagonal state-space layer (S4D-like, computed as an FFT convolution) for classifying long sequences:
which of 4 hidden frequencies is modulating the noise?"""

torch.manual_seed(5)
L, C = 192, 4
freqs = torch.tensor([0.011, 0.019, 0.031, 0.047])

def batch(n, g=None):
    y = torch.randint(0, C, (n,), generator=g)
    t = torch.arange(L).float()
    ph = torch.rand(n, 1, generator=g) * 2 * math.pi
    sig = torch.cos(2 * math.pi * freqs[y][:, None] * t + ph)
    x = 0.6 * sig + torch.randn(n, L, generator=g)
    return x[..., None], y

class S4D(nn.Module):
    def __init__(self, d, n=8, dt_min=1e-3, dt_max=1e-1):
        super().__init__()
        self.log_dt = nn.Parameter(torch.rand(d) * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min))
        self.log_re = nn.Parameter(torch.log(0.5 * torch.ones(d, n)))
        self.im = nn.Parameter(math.pi * torch.arange(n).float().repeat(d, 1))
        self.c = nn.Parameter(torch.randn(d, n, 2) * (0.5 ** 0.5))
        self.skip = nn.Parameter(torch.randn(d))
        self.mix = nn.Linear(d, 2 * d)
    def kernel(self, L):
        dt = self.log_dt.exp()[:, None]
        A = torch.complex(-self.log_re.exp(), self.im)
        dA = A * dt
        Ct = torch.view_as_complex(self.c) * (torch.exp(dA) - 1) / A
        K = torch.exp(dA[..., None] * torch.arange(L))
        return 2 * torch.einsum('dn,dnl->dl', Ct, K).real
    def forward(self, u):
        u = u.transpose(1, 2)
        k = self.kernel(u.size(-1))
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * L) * torch.fft.rfft(k, n=2 * L), n=2 * L)[..., :L]
        y = F.gelu(y + self.skip[:, None] * u).transpose(1, 2)
        return F.glu(self.mix(y), -1)

class Net(nn.Module):
    def __init__(self, d=24, depth=2):
        super().__init__()
        self.inp = nn.Linear(1, d)
        self.layers = nn.ModuleList(S4D(d) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.out = nn.Linear(d, C)
    def forward(self, x):
        x = self.inp(x)
        for l, n in zip(self.layers, self.norms):
            x = x + l(n(x))
        return self.out(x.mean(1))

net = Net()

special = [p for n, p in net.named_parameters() if any(k in n for k in ('log_dt', 'log_re', '.im'))]
rest = [p for n, p in net.named_parameters() if not any(k in n for k in ('log_dt', 'log_re', '.im'))]
opt = torch.optim.AdamW([{'params': special, 'lr': 1e-3, 'weight_decay': 0.0},
                         {'params': rest, 'lr': 4e-3, 'weight_decay': 0.01}])
xv, yv = batch(256, torch.Generator().manual_seed(99))
t0 = time.time()
for step in range(1, 201):
    x, y = batch(32)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    if step == 1 or step % 20 == 0:
        with torch.no_grad():
            acc = (net(xv).argmax(1) == yv).float().mean()
        print(f'{step:4d} loss {loss.item():.4f} val acc {acc:.3f} ({time.time() - t0:.0f}s)')
