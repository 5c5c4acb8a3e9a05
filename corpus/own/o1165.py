import math
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(30)
rng = torch.Generator().manual_seed(31)
N, D, H, L, BS, STEPS = 32, 48, 4, 3, 32, 400
OPEN, KINDS, END = 0, 3, 6
MAXD = 4


def strings(n):
    seq = torch.full((n, N + 1), END)
    nll = torch.zeros(n, N)
    coin = torch.rand(n, N + 1, generator=rng)
    kind = torch.randint(0, KINDS, (n, N + 1), generator=rng)
    for i in range(n):
        stack = []
        for t in range(1, N + 1):
            if len(stack) == MAXD:
                close = True
            elif not stack:
                close = False
            else:
                close = coin[i, t] < 0.5
                nll[i, t - 1] += math.log(2)
            if close:
                seq[i, t] = stack.pop() + KINDS
            else:
                k = int(kind[i, t])
                stack.append(k)
                seq[i, t] = k
                nll[i, t - 1] += math.log(KINDS)
    return seq[:, :-1], seq[:, 1:], nll.mean().item()


def mat(i, o, s=1.0):
    return torch.nn.Parameter(s * torch.randn(i, o) / math.sqrt(i))


emb = torch.nn.Parameter(torch.randn(END + 1, D) * 0.5)
layers = [dict(q=mat(D, D), k=mat(D, D), v=mat(D, D), o=mat(D, D, .5), u=mat(D, 4 * D), d=mat(4 * D, D, .5)) for _ in range(L)]
causal = torch.ones(N, N).tril() == 0


def forward(x):
    h = emb[x]
    split = lambda z: z.unflatten(-1, (H, D // H))
    for p in layers:
        z = F.layer_norm(h, (D,))
        s = torch.einsum("bihd,bjhd->bhij", split(z @ p["q"]), split(z @ p["k"])) / math.sqrt(D // H)
        w = s.masked_fill(causal, -1e30).softmax(-1)
        h = h + torch.einsum("bhij,bjhd->bihd", w, split(z @ p["v"])).flatten(2) @ p["o"]
        h = h + F.relu(F.layer_norm(h, (D,)) @ p["u"]) @ p["d"]
    return F.layer_norm(h, (D,)) @ emb.T * 0.3


pool_x, pool_y, floor = strings(4000)
print(f"entropy of the source {floor:.4f}")
ps = [emb] + [w for p in layers for w in p.values()]
opt = torch.optim.Adam(ps, lr=3e-3, betas=(0.9, 0.95))
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 30) * (1 - 0.95 * s / STEPS))
run = 2.0
for step in range(STEPS):
    idx = torch.randint(0, len(pool_x), (BS,), generator=rng)
    z = forward(pool_x[idx])
    loss = (torch.logsumexp(z, -1) - z.gather(-1, pool_y[idx][..., None])[..., 0]).mean()
    loss.backward()
    opt.step()
    sched.step()
    opt.zero_grad()
    run = 0.9 * run + 0.1 * loss.item()
    if (step + 1) % 15 == 0:
        print(f"{step + 1:4d} loss {loss.item():.4f} smooth {run:.4f}")
with torch.no_grad():
    x, y, f = strings(300)
    print(f"new strings: loss {F.cross_entropy(forward(x).flatten(0, 1), y.flatten()):.4f} entropy {f:.4f}")
