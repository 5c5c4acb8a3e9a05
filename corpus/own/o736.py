import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1234)
NVAR, NVAL, LINES = 8, 10, 6


class MySoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x - x.max(dim=-1, keepdim=True).values
        e = x.exp()
        y = e / e.sum(dim=-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(dim=-1, keepdim=True))


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.dk = h, d // h
        self.Wq = nn.Linear(d, d)
        self.Wk = nn.Linear(d, d)
        self.Wv = nn.Linear(d, d)
        self.Wo = nn.Linear(d, d)

    def forward(self, x):
        B, L, d = x.shape
        split = lambda t: t.reshape(B, L, self.h, self.dk).transpose(1, 2)
        q, k, v = split(self.Wq(x)), split(self.Wk(x)), split(self.Wv(x))
        a = MySoftmax.apply(q @ k.transpose(-1, -2) * self.dk ** -0.5)
        return self.Wo((a @ v).transpose(1, 2).reshape(B, L, d))


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.attn = Attention(d, h)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.ln1 = nn.LayerNorm(d)
        self.ln2 = nn.LayerNorm(d)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        return x


class Tracker(nn.Module):
    def __init__(self, d=64, h=4, depth=2):
        super().__init__()
        self.var = nn.Embedding(NVAR, d)
        self.val = nn.Embedding(NVAL + 1, d)
        self.line = nn.Embedding(LINES + 1, d)
        self.blocks = nn.Sequential(*[Block(d, h) for _ in range(depth)])
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, NVAL))

    def forward(self, var, val):
        x = self.var(var) + self.val(val) + self.line.weight
        return self.out(self.blocks(x)[:, -1])


def programs(n):
    var = torch.randint(0, NVAR, (n, LINES))
    val = torch.randint(0, NVAL, (n, LINES))
    ask = var.gather(1, torch.randint(0, LINES, (n, 1)))
    last = ((var == ask) * torch.arange(1, LINES + 1)).argmax(1, keepdim=True)
    y = val.gather(1, last).squeeze(1)
    return torch.cat([var, ask], 1), torch.cat([val, torch.full((n, 1), NVAL)], 1), y


model = Tracker()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
test = programs(1000)
for step in range(1, 601):
    var, val, y = programs(64)
    loss = F.cross_entropy(model(var, val), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 75 == 0:
        with torch.no_grad():
            acc = (model(test[0], test[1]).argmax(-1) == test[2]).float().mean()
        print("step %d | loss %.4f | test acc %.3f" % (step, loss.item(), acc))
