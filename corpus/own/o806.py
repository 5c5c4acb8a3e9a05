import random
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
random.seed(30)
torch.manual_seed(30)
V, LANES, CHUNK = 20, 16, 24


def stream(n):
    """A key of four symbols is announced, then reused to encode the rest of a long record."""
    out = []
    while len(out) < n:
        key = random.sample(range(10, 18), 4)
        out += [18] + key + [19]
        for _ in range(random.randint(20, 40)):
            i = random.randrange(4)
            out += [i, key[i]]
    return torch.tensor(out[:n])


class Retention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.c = h, d // h
        self.qkv, self.g, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d), nn.Linear(d, d)
        self.norm = nn.GroupNorm(h, d)
        self.register_buffer("log_decay", torch.log(1 - 2.0 ** (-4 - torch.arange(h).float() * 2)))

    def forward(self, x, S):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, self.c).permute(2, 0, 3, 1, 4)
        k = k * self.c ** -0.5
        t = torch.arange(T)
        lag = (t[:, None] - t[None]).clamp(min=0)
        D_mat = torch.exp(lag * self.log_decay[:, None, None]) * (t[:, None] >= t[None])
        inner = (q @ k.transpose(-1, -2) * D_mat) @ v
        cross = (q @ S) * torch.exp((t + 1)[:, None] * self.log_decay[:, None, None])
        back = torch.exp((T - 1 - t)[:, None] * self.log_decay[:, None, None])
        S = S * torch.exp(T * self.log_decay)[:, None, None] + (k * back).transpose(-1, -2) @ v
        y = (inner + cross).transpose(1, 2).reshape(B * T, D)
        return self.o(self.norm(y).view(B, T, D) * F.silu(self.g(x))), S


class RetNet(nn.Module):
    def __init__(self, d=64, h=4, layers=2):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.shift = nn.Parameter(torch.rand(layers, d) * 0.5)
        self.ret = nn.ModuleList(Retention(d, h) for _ in range(layers))
        self.ff = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
                                for _ in range(layers))
        self.ln = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers))
        self.head = nn.Linear(d, V)

    def start(self, b):
        return [(torch.zeros(b, r.h, r.c, r.c), torch.zeros(b, 1, self.emb.embedding_dim)) for r in self.ret]

    def forward(self, ids, state):
        x, new = self.emb(ids), []
        for i, (ret, ff, ln) in enumerate(zip(self.ret, self.ff, self.ln)):
            S, last = state[i]
            y = ln(x)
            prev = torch.cat([last, y[:, :-1]], 1)
            a, S = ret(y + self.shift[i] * prev, S)
            new.append((S.detach(), y[:, -1:].detach()))
            x = x + a
            x = x + ff(x)
        return self.head(x), new


steps = 420
data = torch.stack([stream(CHUNK * 150 + 1) for _ in range(LANES)])
net = RetNet()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=steps, pct_start=0.1)
state, at, recent = net.start(LANES), 0, []
for s in range(steps):
    if at + CHUNK + 1 > data.size(1):
        state, at = net.start(LANES), 0
    x, y = data[:, at:at + CHUNK], data[:, at + 1:at + CHUNK + 1]
    at += CHUNK
    logits, state = net(x, state)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    body = (x < 4) & (y >= 10) & (y < 18)
    recent.append((logits.argmax(-1) == y)[body].float().mean().item())
    if s % 40 == 0 or s == steps - 1:
        print(f"step {s:3d} loss {loss.item():.4f} ppl {loss.exp().item():.2f} key recall {sum(recent[-10:]) / len(recent[-10:]):.3f}")
