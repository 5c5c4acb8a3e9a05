import math, random, time
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
random.seed(8)
torch.manual_seed(8)

WIDTH, HEADS, DEPTH, LEN, BATCH, ITERS = 72, 6, 3, 40, 32, 270


def fragment(depth=0):
    s = ""
    for _ in range(random.randint(1, 4)):
        r = random.random()
        if r < 0.45:
            s += random.choice("CCCNOS")
        elif r < 0.6:
            s += random.choice(["C=C", "C=O", "C\x23N"])
        elif r < 0.75:
            s += random.choice(["c1ccccc1", "c1ccncc1", "C1CCOC1", "C1CCNCC1"])
        elif depth < 2:
            s += "C(" + fragment(depth + 1) + ")"
        else:
            s += random.choice("FI")
    return s


def molecules(n):
    text = []
    while len(text) < n:
        text.append(fragment() + random.choice(["", "", "F", "Br", "Cl", "O"]))
    return "\n".join(text)


corpus = molecules(14000)
alphabet = sorted(set(corpus))
ids = torch.tensor([alphabet.index(c) for c in corpus])
cut = int(0.95 * len(ids))
train, held = ids[:cut], ids[cut:]


def sample(src, n):
    at = torch.randint(0, len(src) - LEN - 1, (n,))
    rows = src[at[:, None] + torch.arange(LEN + 1)]
    return rows[:, :-1], rows[:, 1:]


def build():
    p = {"emb": torch.randn(len(alphabet), WIDTH) * 0.1}
    for i in range(DEPTH):
        p[f"h{i}.a"] = torch.randn(3, WIDTH, HEADS, WIDTH // HEADS) * WIDTH ** -0.5
        p[f"h{i}.o"] = torch.randn(HEADS, WIDTH // HEADS, WIDTH) * (WIDTH * 2 * DEPTH) ** -0.5
        p[f"h{i}.f"] = torch.randn(WIDTH, 3 * WIDTH) * WIDTH ** -0.5
        p[f"h{i}.g"] = torch.randn(3 * WIDTH, WIDTH) * (3 * WIDTH * 2 * DEPTH) ** -0.5
        p[f"h{i}.s"] = torch.ones(2, WIDTH)
    p["s"] = torch.ones(WIDTH)
    p["lm"] = torch.randn(WIDTH, len(alphabet)) * WIDTH ** -0.5 * 0.3
    return {k: v.requires_grad_() for k, v in p.items()}


slopes = 2.0 ** -torch.linspace(0.5, 6, HEADS)
dist = torch.arange(LEN)[:, None] - torch.arange(LEN)[None]
alibi = torch.where(dist >= 0, -slopes[:, None, None] * dist, float("-inf"))


def logits(p, x):
    h = p["emb"][x]
    for i in range(DEPTH):
        n = F.rms_norm(h, (WIDTH,)) * p[f"h{i}.s"][0]
        q, k, v = torch.einsum("btd,cdhe->cbhte", n, p[f"h{i}.a"])
        w = (torch.einsum("bhte,bhse->bhts", q, k) / math.sqrt(WIDTH // HEADS) + alibi).softmax(-1)
        h = h + torch.einsum("bhts,bhse,hed->btd", w, v, p[f"h{i}.o"])
        n = F.rms_norm(h, (WIDTH,)) * p[f"h{i}.s"][1]
        h = h + F.relu(n @ p[f"h{i}.f"]).square() @ p[f"h{i}.g"]
    return F.rms_norm(h, (WIDTH,)) * p["s"] @ p["lm"]


def xent(z, y):
    return (z.logsumexp(-1) - z.gather(-1, y[..., None]).squeeze(-1)).mean()


class Adam:
    def __init__(self, tensors, lr, betas=(0.9, 0.98), eps=1e-8):
        self.ps, self.lr, self.b, self.eps = list(tensors), lr, betas, eps
        self.m = [torch.zeros_like(t) for t in self.ps]
        self.v = [torch.zeros_like(t) for t in self.ps]
        self.n = 0

    @torch.no_grad()
    def step(self, scale):
        live = [(t, m, v) for t, m, v in zip(self.ps, self.m, self.v) if t.grad is not None]
        self.n += 1
        if not live:
            return
        ps, ms, vs = map(list, zip(*live))
        gs = [t.grad for t in ps]
        torch._foreach_lerp_(ms, gs, 1 - self.b[0])
        torch._foreach_mul_(vs, self.b[1])
        torch._foreach_addcmul_(vs, gs, gs, 1 - self.b[1])
        den = torch._foreach_sqrt(torch._foreach_div(vs, 1 - self.b[1] ** self.n))
        torch._foreach_add_(den, self.eps)
        torch._foreach_addcdiv_(ps, ms, den, -self.lr * scale / (1 - self.b[0] ** self.n))
        for t in ps:
            t.grad = None


@torch.no_grad()
def held_out(p):
    torch.manual_seed(1)
    return sum(xent(logits(p, x), y).item() for x, y in (sample(held, 64) for _ in range(3))) / 3


params = build()
opt = Adam(params.values(), 2e-3)
average = {k: v.detach().clone() for k, v in params.items()}
began = time.time()
for it in range(1, ITERS + 1):
    x, y = sample(train, BATCH)
    loss = xent(logits(params, x), y)
    loss.backward()
    opt.step(min(1, it / 40) * (1 - 0.9 * it / ITERS))
    with torch.no_grad():
        torch._foreach_lerp_(list(average.values()), list(params.values()), 0.03)
    if it % 15 == 0:
        print(f"{it:5d} | {loss.item():.4f} | {time.time() - began:.1f}s")
    if it % 45 == 0:
        state = torch.random.get_rng_state()
        backup = {k: v.detach().clone() for k, v in params.items()}
        with torch.no_grad():
            for k, v in params.items():
                v.copy_(average[k])
        print(f"      | averaged weights, held out: {held_out(params):.4f}")
        params = {k: v.requires_grad_() for k, v in backup.items()}
        torch.random.set_rng_state(state)
