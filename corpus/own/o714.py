import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(101)
AA = 20
MASK, CLS = 20, 21
L = 24
SITE = 11
GROUP = torch.tensor([0, 1, 2, 3, 0, 2, 1, 3, 0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3])
FREQ = torch.softmax(torch.randn(5, AA) * 1.2, -1)


def proteins(n):
    fam = torch.randint(0, 5, (n,))
    seq = torch.multinomial(FREQ[fam], L, replacement=True)
    seq[:, 1::2] = torch.where(torch.rand(n, L // 2) < 0.7, (seq[:, 0::2] + 7) % AA, seq[:, 1::2])
    seq[:, SITE] = torch.randint(0, AA, (n,))
    return seq, GROUP[seq[:, SITE]]


class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (f(x).view(B, T, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, D))


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = Attn(d, h)
        self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class ProteinNet(nn.Module):
    def __init__(self, d=64, h=4, n=2):
        super().__init__()
        self.tok = nn.Embedding(22, d)
        self.pos = nn.Parameter(torch.randn(1, L + 1, d) * 0.02)
        self.layers = nn.ModuleList(Layer(d, h) for _ in range(n))
        self.norm = nn.LayerNorm(d)
        self.lm = nn.Linear(d, AA)
        self.cls = None

    def encode(self, seq):
        x = torch.cat([torch.full((len(seq), 1), CLS), seq], 1)
        x = self.tok(x) + self.pos
        for lay in self.layers:
            x = lay(x)
        return self.norm(x)


class LowRank(nn.Module):
    def __init__(self, base, r=8, alpha=16):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(r, base.in_features) * base.in_features ** -0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, r))
        self.s = alpha / r

    def forward(self, x):
        return self.base(x) + self.s * (x @ self.down.t()) @ self.up.t()


def add_adapters(net):
    for lay in net.layers:
        for name in ("q", "k", "v", "o"):
            setattr(lay.attn, name, LowRank(getattr(lay.attn, name)))
        lay.fc1 = LowRank(lay.fc1)
        lay.fc2 = LowRank(lay.fc2)


def trainable(net):
    return [p for p in net.parameters() if p.requires_grad]


net = ProteinNet()
unl, _ = proteins(4000)
optim = torch.optim.AdamW(trainable(net), lr=2e-3)
for it in range(180):
    s = unl[torch.randint(0, len(unl), (48,))]
    hide = torch.rand(s.shape) < 0.2
    h = net.encode(torch.where(hide, MASK, s))[:, 1:]
    loss = F.cross_entropy(net.lm(h[hide]), s[hide])
    optim.zero_grad()
    loss.backward()
    optim.step()
    if it % 50 == 0:
        print(f"[pretrain] {it} loss {loss.item():.4f}")

net.requires_grad_(False)
net.cls = nn.Linear(64, 4)
optim = torch.optim.AdamW(trainable(net), lr=3e-3, weight_decay=0.0)
add_adapters(net)
print("trainable parameters:", sum(p.numel() for p in trainable(net)))

xs, ys = proteins(2500)
xv, yv = proteins(500)
for it in range(220):
    j = torch.randint(0, len(xs), (48,))
    loss = F.cross_entropy(net.cls(net.encode(xs[j]).mean(1)), ys[j])
    optim.zero_grad()
    loss.backward()
    optim.step()
    if it % 50 == 0 or it == 219:
        with torch.no_grad():
            acc = (net.cls(net.encode(xv).mean(1)).argmax(-1) == yv).float().mean()
        print(f"[adapt] {it} loss {loss.item():.4f} val acc {acc.item():.3f}")
