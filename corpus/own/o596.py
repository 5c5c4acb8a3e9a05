import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(1234)
text = "\n".join(topics[k] for k in sorted(topics))[:300_000]
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text])
cut = int(0.9 * len(ids))
train_ids, valid_ids = ids[:cut], ids[cut:]
V, C, T, NLAYER, BS = len(chars), 96, 48, 2, 20


class TimeMix(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))
        ramp = torch.arange(C) / C
        self.mu_k = nn.Parameter(ramp.clone())
        self.mu_v = nn.Parameter(ramp.clone() + 0.1 * layer)
        self.mu_r = nn.Parameter(ramp.clone() / 2)
        self.decay = nn.Parameter(torch.linspace(-4.0, 1.0, C))
        self.first = nn.Parameter(torch.zeros(C))
        self.key, self.value = nn.Linear(C, C, bias=False), nn.Linear(C, C, bias=False)
        self.recept, self.output = nn.Linear(C, C, bias=False), nn.Linear(C, C, bias=False)

    def forward(self, x):
        xx = self.shift(x)
        k = self.key(torch.lerp(xx, x, self.mu_k))
        v = self.value(torch.lerp(xx, x, self.mu_v))
        r = torch.sigmoid(self.recept(torch.lerp(xx, x, self.mu_r)))
        n = x.shape[1]
        w = -torch.exp(self.decay)
        k = k.clamp(max=12.0)
        dist = torch.arange(n)[:, None] - torch.arange(n)[None, :]
        past = (dist > 0).float()[:, :, None]
        kernel = past * torch.exp(w * (dist - 1).clamp(min=0)[:, :, None])
        kernel = kernel + torch.eye(n)[:, :, None] * torch.exp(self.first)
        ek = torch.exp(k)
        top = torch.einsum("tsc,bsc->btc", kernel, ek * v)
        low = torch.einsum("tsc,bsc->btc", kernel, ek)
        return self.output(r * top / (low + 1e-6))


class ChannelMix(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(C, 3 * C, bias=False)
        self.down = nn.Linear(3 * C, C, bias=False)
        self.gate = nn.Linear(C, C, bias=False)

    def forward(self, x):
        return torch.sigmoid(self.gate(x)) * self.down(torch.relu(self.up(x)).square())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, C)
        self.ln0 = nn.LayerNorm(C)
        self.lns = nn.ModuleList(nn.LayerNorm(C) for _ in range(2 * NLAYER))
        self.tm = nn.ModuleList(TimeMix(i) for i in range(NLAYER))
        self.cm = nn.ModuleList(ChannelMix() for _ in range(NLAYER))
        self.ln_out = nn.LayerNorm(C)
        self.head = nn.Linear(C, V, bias=False)

    def forward(self, idx):
        x = self.ln0(self.emb(idx))
        for i in range(NLAYER):
            x = x + self.tm[i](self.lns[2 * i](x))
            x = x + self.cm[i](self.lns[2 * i + 1](x))
        return self.head(self.ln_out(x))


def batch(src):
    i = torch.randint(len(src) - T - 1, (BS,))
    w = src[i[:, None] + torch.arange(T + 1)]
    return w[:, :-1], w[:, 1:]


net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.9, 0.99))
STEPS = 220
for it in range(STEPS):
    for grp in opt.param_groups:
        grp["lr"] = 3e-3 * min(1, (it + 1) / 20) * (0.1 ** (it / STEPS))
    x, y = batch(train_ids)
    loss = F.cross_entropy(net(x).reshape(-1, V), y.reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 20 == 0 or it == STEPS - 1:
        print("it", it, "nats/char %.3f" % loss.item(), flush=True)


@torch.no_grad()
def rollout_nll(n=128):
    i = torch.randint(len(valid_ids) - T - 1, (n,))
    w = valid_ids[i[:, None] + torch.arange(T + 1)]
    cut = torch.randint(24, T, (1,)).item()
    return F.cross_entropy(net(w[:, :cut])[:, -1], w[:, cut]).item()


print("last-position nats/char %.3f" % (sum(rollout_nll() for _ in range(6)) / 6))
