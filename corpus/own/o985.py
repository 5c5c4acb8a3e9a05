import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
random.seed(6)
SEG, MEM, STREAMS, D, H, STEPS = 24, 24, 16, 64, 4, 300


def story():
    """a long log: a speaker is announced once, later lines refer back to the pet of that speaker"""
    who = random.choice(["mia", "tom", "lea", "sam"])
    pet = random.choice(["cat", "dog", "emu", "fox"])
    out = f"{who} has a {pet} . "
    for _ in range(random.randint(2, 4)):
        out += random.choice([f"the {pet} of {who} sleeps . ", f"{who} calls the {pet} . ", f"then {who} feeds the {pet} . "])
    return out


words = "".join(story() for _ in range(6200)).split()
itos = sorted(set(words))
data = torch.tensor([itos.index(w) for w in words])
held = data[-4800:].view(STREAMS, -1)
n = (len(data) - 4800) // STREAMS
train = data[: n * STREAMS].view(STREAMS, n)


class MemLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.kv, self.o = nn.Linear(D, D, bias=False), nn.Linear(D, 2 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.rel = nn.Parameter(torch.zeros(H, SEG + MEM))

    def forward(self, x, mem):
        B, T, _ = x.shape
        ctx = x if mem is None else torch.cat([mem, x], 1)
        S = ctx.size(1)
        q = self.q(self.n1(x)).view(B, T, H, -1).transpose(1, 2)
        k, v = self.kv(self.n1(ctx)).view(B, S, 2, H, -1).permute(2, 0, 3, 1, 4)
        dist = (torch.arange(T)[:, None] + S - T) - torch.arange(S)[None]
        bias = self.rel[:, dist.clamp(0, SEG + MEM - 1)].masked_fill((dist < 0) | (dist >= MEM), -1e9)
        att = (q @ k.transpose(-1, -2) / math.sqrt(D // H) + bias).softmax(-1)
        x = x + self.o((att @ v).transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class RecurrentLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(itos), D)
        nn.init.normal_(self.emb.weight, std=0.3)
        self.layers = nn.ModuleList([MemLayer(), MemLayer()])
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, len(itos))

    def forward(self, ids, mems):
        x, new = self.emb(ids), []
        for layer, m in zip(self.layers, mems):
            new.append(x.detach()[:, -MEM:])
            x = layer(x, m)
        return self.head(self.norm(x)), new


class Factored(torch.optim.Optimizer):
    """row/column second moments, step size relative to the parameter scale, no first moment"""

    def __init__(self, params):
        super().__init__(params, {})
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        rho = min(2e-2, 1 / math.sqrt(self.t))
        b2 = 1 - self.t**-0.8
        for p in self.param_groups[0]["params"]:
            g2, st = p.grad.square() + 1e-30, self.state[p]
            if p.dim() == 2:
                r = st.setdefault("r", torch.zeros(p.size(0))).lerp_(g2.mean(1), 1 - b2)
                c = st.setdefault("c", torch.zeros(p.size(1))).lerp_(g2.mean(0), 1 - b2)
                v = r[:, None] * c[None] / r.mean()
            else:
                v = st.setdefault("v", torch.zeros_like(p)).lerp_(g2, 1 - b2)
            u = p.grad * v.rsqrt()
            u /= (u.square().mean().sqrt()).clamp(min=1.0)
            p.add_(u, alpha=-rho * max(1e-3, p.square().mean().sqrt().item()))


def segments(block):
    for s in range(0, block.size(1) - SEG - 1, SEG):
        yield block[:, s : s + SEG], block[:, s + 1 : s + SEG + 1]


@torch.no_grad()
def evaluate(model):
    mems, tot, cnt = [None, None], 0.0, 0
    for x, y in segments(held):
        logits, mems = model(x, mems)
        tot += F.cross_entropy(logits.flatten(0, 1), y.flatten()).item()
        cnt += 1
    return tot / cnt


model = RecurrentLM()
opt = Factored(model.parameters())
step, mems = 0, [None, None]
stream = segments(train)
while step < STEPS:
    try:
        x, y = next(stream)
    except StopIteration:
        stream, mems = segments(train), [None, None]
        continue
    logits, mems = model(x, mems)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    model.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"segment {step:3d} loss {loss.item():.4f}")
    step += 1
print(f"held-out loss {evaluate(model):.4f}")
