import math
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(6)
DIG, D, H, LOOPS, BS, STEPS = 7, 64, 4, 4, 64, 600
OPS = DIG
VOCAB = DIG + 3
ANSWERS = 5 * (DIG - 1) + 1


def problems(n):
    a, b, c = torch.randint(0, DIG, (3, n))
    o1, o2 = torch.randint(0, 2, (2, n))
    mid = torch.where(o1 == 0, a + b, a - b)
    y = torch.where(o2 == 0, mid + c, mid - c)
    eq = torch.full((n,), DIG + 2)
    return torch.stack([a, OPS + o1, b, OPS + o2, c, eq], 1), y + 2 * (DIG - 1)


def mk(*s):
    return (torch.randn(*s) / math.sqrt(s[0])).requires_grad_()


block = {"qkv": mk(D, 3 * D), "o": mk(D, D), "up": mk(D, 4 * D), "down": mk(4 * D, D)}
P = {"tok": (0.5 * torch.randn(VOCAB, D)).requires_grad_(), "pos": (0.5 * torch.randn(6, D)).requires_grad_(),
     "loop": (0.3 * torch.randn(LOOPS, D)).requires_grad_(),
     "gate": torch.zeros(LOOPS, 2, requires_grad=True), "out": torch.zeros(D, ANSWERS, requires_grad=True)}
stack = [block] * LOOPS
weights = list(block.values()) + list(P.values())


def net(x):
    h = P["tok"][x] + P["pos"]
    B, T, _ = h.shape
    for i, b in enumerate(stack):
        z = F.rms_norm(h + P["loop"][i], (D,))
        q, k, v = (z @ b["qkv"]).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        a = torch.softmax(q @ k.mT / math.sqrt(D // H), -1) @ v
        h = h + P["gate"][i, 0] * (a.transpose(1, 2).reshape(B, T, D) @ b["o"])
        h = h + P["gate"][i, 1] * (F.silu(F.rms_norm(h, (D,)) @ b["up"]) @ b["down"])
    return F.rms_norm(h[:, -1], (D,)) @ P["out"]


class SignMomentum:
    def __init__(self, ps, b1=0.9, b2=0.98):
        self.ps, self.b1, self.b2 = ps, b1, b2
        self.m = [torch.zeros_like(p) for p in ps]

    @torch.no_grad()
    def step(self, grads, lr):
        u = torch._foreach_lerp(self.m, grads, 1 - self.b1)
        torch._foreach_add_(self.ps, torch._foreach_sign(u), alpha=-lr)
        torch._foreach_lerp_(self.m, grads, 1 - self.b2)


opt = SignMomentum(weights)
for t in range(1, STEPS + 1):
    x, y = problems(BS)
    z = net(x)
    total = (z.logsumexp(-1) - z.gather(1, y[:, None]).squeeze(1)).sum()
    grads = torch.autograd.grad(total, weights)
    opt.step(grads, 2.4e-3 * min(1, t / 30) * (1.01 - t / STEPS))
    if t % 20 == 0:
        print(f"{t} summed loss {total.item():.2f} over {BS} problems")
x, y = problems(1000)
print("solved", (net(x).argmax(-1) == y).float().mean().item())
