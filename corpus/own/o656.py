import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

N_SYM, HEADER, FILL = 8, 3, 24
MARK = N_SYM
NOISE0 = N_SYM + 1
N_NOISE = 6
VOCAB = N_SYM + 1 + N_NOISE


class ChunkedScan(torch.autograd.Function):

    @staticmethod
    def forward(ctx, a, b, chunk):
        h = torch.empty_like(b)
        state = torch.zeros_like(b[:, 0])
        for start in range(0, b.size(1), chunk):
            for t in range(start, min(start + chunk, b.size(1))):
                state = a[:, t] * state + b[:, t]
                h[:, t] = state
        ctx.save_for_backward(a, h)
        ctx.chunk = chunk
        return h

    @staticmethod
    def backward(ctx, grad):
        a, h = ctx.saved_tensors
        T, chunk = h.size(1), ctx.chunk
        ga, gb = torch.zeros_like(a), torch.empty_like(h)
        carry = torch.zeros_like(h[:, 0])
        for start in reversed(range(0, T, chunk)):
            for t in reversed(range(start, min(start + chunk, T))):
                carry = carry + grad[:, t]
                gb[:, t] = carry
                if t > 0:
                    ga[:, t] = carry * h[:, t - 1]
                carry = carry * a[:, t]
        return ga, gb, None


class Mixer(nn.Module):
    def __init__(self, d, inner, chunk=8):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.inp = nn.Linear(d, inner)
        self.decay = nn.Linear(d, inner)
        self.gate = nn.Linear(d, inner)
        self.out = nn.Linear(inner, d)
        self.conv = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.chunk = chunk
        nn.init.uniform_(self.decay.bias, 1.0, 5.0)

    def forward(self, x):
        u = self.norm(x)
        v = self.inp(u)
        v = F.silu(self.conv(v.transpose(1, 2))[..., : x.size(1)].transpose(1, 2))
        a = torch.sigmoid(self.decay(u))
        h = ChunkedScan.apply(a, (1 - a) * v, self.chunk)
        return x + self.out(h * F.silu(self.gate(u)))


class MLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class RecurrentLM(nn.Module):
    def __init__(self, d=48, inner=96, depth=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.layers = nn.Sequential(*[m for _ in range(depth) for m in (Mixer(d, inner), MLP(d))])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, x):
        return self.head(self.norm(self.layers(self.emb(x))))


def batch(n, g):
    head = torch.randint(0, N_SYM, (n, HEADER), generator=g)
    noise = NOISE0 + torch.randint(0, N_NOISE, (n, FILL), generator=g)
    mark = torch.full((n, 1), MARK)
    seq = torch.cat([head, noise, mark, head], 1)
    x, y = seq[:, :-1], seq[:, 1:].clone()
    y[:, : HEADER + FILL] = -100
    return x, y


g = torch.Generator().manual_seed(5)
model = RecurrentLM()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
STEPS = 240
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=STEPS, pct_start=0.1)

for step in range(1, STEPS + 1):
    x, y = batch(24, g)
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 25 == 0:
        print(f"{step:4d} loss {loss.item():.4f}")

with torch.no_grad():
    x, y = batch(256, g)
    keep = y != -100
    logits = model(x)
    print("test loss %.4f" % F.cross_entropy(logits[keep], y[keep]).item(),
          "recall accuracy %.3f" % (logits.argmax(-1)[keep] == y[keep]).float().mean().item())
