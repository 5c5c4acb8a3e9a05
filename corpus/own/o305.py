import torch
from torch import nn

TASKS = ("first", "largest", "smallest", "zeros", "last")
CLASSES, LENGTH = 10, 9


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, grad):
        x, s = ctx.saved_tensors
        return grad * (s + x * s * (1 - s))


class FeedForward(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)

    def forward(self, x):
        return self.b(Swish.apply(self.a(x)))


class Encoder(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ff = FeedForward(d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        y = self.n1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class MultiTask(nn.Module):
    def __init__(self, d=64, depth=2):
        super().__init__()
        self.embed = nn.Embedding(CLASSES + 1, d)
        self.place = nn.Parameter(torch.randn(LENGTH + 1, d) * 0.1)
        self.body = nn.Sequential(*[Encoder(d, 4) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.heads = nn.ModuleDict(dict.fromkeys(TASKS, nn.Linear(d, CLASSES)))

    def forward(self, x):
        cls = torch.full((x.size(0), 1), CLASSES)
        h = self.body(self.embed(torch.cat([cls, x], dim=1)) + self.place)
        h = self.norm(h[:, 0])
        return {t: self.heads[t](h) for t in TASKS}


def batch(n):
    x = torch.randint(CLASSES, (n, LENGTH))
    x = torch.where(torch.rand(n, LENGTH) < 0.15, 0, x)
    y = {"first": x[:, 0], "largest": x.amax(1), "smallest": x.amin(1), "zeros": (x == 0).sum(1), "last": x[:, -1]}
    return x, {t: v.clamp(max=CLASSES - 1) for t, v in y.items()}


torch.manual_seed(31)
model = MultiTask()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 20)
for step in range(240):
    x, y = batch(64)
    out = model(x)
    losses = {t: nn.functional.cross_entropy(out[t], y[t]) for t in TASKS}
    loss = sum(losses.values()) / len(TASKS)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 20 == 0 or step == 239:
        parts = " ".join(f"{t} {v.item():.2f}" for t, v in losses.items())
        print(f"step {step} loss {loss.item():.4f} | {parts}")
