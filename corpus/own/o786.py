import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(13)


def scan(a, u):
    h, state = torch.empty_like(u), torch.zeros_like(u[:, 0])
    for t in range(u.size(1)):
        state = torch.addcmul(u[:, t], a[:, t], state)
        h[:, t] = state
    return h


class GatedScan(torch.autograd.Function):
    """h_t = a_t * h_{t-1} + u_t along dim 1, h_{-1} = 0; the backward is again a scan."""

    @staticmethod
    def forward(ctx, a, u):
        h = scan(a, u)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx, gh):
        a, h = ctx.saved_tensors
        zero = torch.zeros_like(a[:, :1])
        a_next = torch.cat([a[:, 1:], zero], 1)
        gu = scan(a_next.flip(1), gh.flip(1)).flip(1)
        ga = gu * torch.cat([zero, h[:, :-1]], 1)
        return ga, gu


class RecurrentBlock(nn.Module):
    def __init__(self, d, mult=2):
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.inp, self.gate = nn.Linear(d, d), nn.Linear(d, d)
        self.rec, self.out = nn.Linear(d, d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, mult * d), nn.Linear(mult * d, d)
        nn.init.uniform_(self.rec.bias, 0.5, 3.5)

    def forward(self, x):
        y = self.norm(x)
        a = torch.sigmoid(self.rec(y))
        h = GatedScan.apply(a, (1 - a) * self.inp(y))
        x = x + self.out(h * F.silu(self.gate(y)))
        return x + self.down(F.relu(self.up(self.norm2(x))) ** 2)


class RecurrentLM(nn.Module):
    def __init__(self, vocab, d=64, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(RecurrentBlock(d) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


N_KEYS, N_VALS, N_NOISE = 2, 8, 6
SET, ASK = 0, 1
KEY0, VAL0 = 2, 2 + N_KEYS
NOISE0 = VAL0 + N_VALS
VOCAB = NOISE0 + N_NOISE


def make_batch(bs, T=32):
    """Register machine: 'SET k v' writes, 'ASK k' must be answered by the latest v, noise in between."""
    ids = NOISE0 + torch.randint(0, N_NOISE, (bs, T))
    target = torch.full((bs, T), -100)
    for b in range(bs):
        mem, t = {}, 0
        while t < T - 3:
            r = torch.rand(1).item()
            if r < 0.25 or not mem:
                k, v = int(torch.randint(N_KEYS, (1,))), int(torch.randint(N_VALS, (1,)))
                mem[k] = v
                ids[b, t:t + 3] = torch.tensor([SET, KEY0 + k, VAL0 + v])
                t += 3
            elif r < 0.6:
                k = list(mem)[int(torch.randint(len(mem), (1,)))]
                ids[b, t], ids[b, t + 1] = ASK, KEY0 + k
                target[b, t + 1] = VAL0 + mem[k]
                t += 2
            else:
                t += int(torch.randint(1, 4, (1,)))
    return ids, target


pool = [make_batch(32) for _ in range(80)]
test = [make_batch(32) for _ in range(4)]
model = RecurrentLM(VOCAB)
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01)
STEPS = 360
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / 40, 1.0) * (1 - 0.9 * s / STEPS))
for step in range(STEPS):
    ids, target = pool[int(torch.randint(len(pool), (1,)))]
    loss = F.cross_entropy(model(ids).flatten(0, 1), target.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    gn = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 30 == 0 or step == STEPS - 1:
        with torch.no_grad():
            hits = [((model(i).argmax(-1) == y)[y >= 0]).float().mean() for i, y in test]
        print(f"step {step:3d} loss {loss.item():.4f} gnorm {gn:.3f} test recall {torch.stack(hits).mean():.3f}")
