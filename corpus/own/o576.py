import torch
import torch.nn.functional as F
from torch.func import functional_call

ATOMS = ["<s>", "C", "N", "O", "S", "(", ")", "=", "1", "2", "c", "n", "F", "<e>"]
ID = {a: i for i, a in enumerate(ATOMS)}
T = 36


def molecule(g):
    def pick(xs):
        return xs[int(torch.randint(0, len(xs), (1,), generator=g))]

    def branch(depth):
        s = []
        for _ in range(int(torch.randint(1, 4, (1,), generator=g))):
            u = float(torch.rand(1, generator=g))
            if u < 0.25:
                hetero = pick(["n", "c"])
                s += ["c", "1", "c", "c", hetero, "c", "c", "1"]
            elif u < 0.45 and depth < 2:
                s += ["C", "("] + branch(depth + 1) + [")"]
            elif u < 0.65:
                s += ["C", "(", "=", "O", ")"]
            else:
                s += [pick(["C", "C", "N", "S", "O"])]
        return s
    s = ["<s>"] + branch(0) + [pick(["F", "O", "N"])]
    while len(s) <= T:
        s += ["<e>"] + branch(0) + [pick(["F", "O", "N"])]
    return [ID[a] for a in s[: T + 1]]


class Dense(torch.nn.Module):
    def __init__(self, i, o, gain=1.0):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(o, i))
        self.k = gain * i ** -0.5

    def forward(self, x):
        return F.linear(x, self.w * self.k)


class Block(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv, self.o = Dense(d, 3 * d), Dense(d, d, 0.5)
        self.a, self.b = Dense(d, 3 * d, 1.4), Dense(3 * d, d, 0.5)

    def forward(self, x):
        d = x.shape[-1:]
        q, k, v = (u.unflatten(-1, (4, -1)).transpose(1, 2) for u in self.qkv(F.layer_norm(x, d)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.b(F.relu(self.a(F.layer_norm(x, d))))


class SmilesLM(torch.nn.Module):
    def __init__(self, d=64, depth=2):
        super().__init__()
        self.tok = torch.nn.Parameter(torch.randn(len(ATOMS), d))
        self.pos = torch.nn.Parameter(torch.randn(T, d))
        self.blocks = torch.nn.Sequential(*[Block(d) for _ in range(depth)])
        self.head = Dense(d, len(ATOMS), 0.5)

    def forward(self, x):
        h = 0.7 * (self.tok[x] + self.pos)
        return self.head(F.layer_norm(self.blocks(h), h.shape[-1:]))


class Arena:

    def __init__(self, module, bits):
        named = list(module.named_parameters())
        self.names = [n for n, _ in named]
        self.shapes = [p.shape for _, p in named]
        self.sizes = [p.numel() for _, p in named]
        self.top = 2 ** (bits - 1) - 1
        unit = [4 * p.detach().abs().max() / self.top for _, p in named]
        self.unit = torch.stack(unit).repeat_interleave(torch.tensor(self.sizes))
        self.cells = torch.empty(sum(self.sizes), dtype=torch.int32)
        self.put(torch.cat([p.detach().flatten() for _, p in named]))
        self.m = torch.zeros_like(self.unit)
        self.v = torch.zeros_like(self.unit)
        self.n = 0

    def put(self, flat):
        self.cells.copy_((flat / self.unit).round().clamp(-self.top, self.top))

    def get(self):
        return self.cells * self.unit

    def views(self, flat):
        return {n: c.view(s) for n, s, c in zip(self.names, self.shapes, flat.split(self.sizes))}

    def apply(self, g, lr, b1=0.9, b2=0.98):
        self.n += 1
        self.m.lerp_(g, 1 - b1)
        self.v.lerp_(g * g, 1 - b2)
        upd = (self.m / (1 - b1 ** self.n)) / ((self.v / (1 - b2 ** self.n)).sqrt() + 1e-9)
        self.put(self.get() - lr * upd)


def main(steps=340, bs=32, lr=6e-3):
    torch.manual_seed(6)
    g = torch.Generator().manual_seed(60)
    data = torch.tensor([molecule(g) for _ in range(2000)])
    net = SmilesLM()
    arena = Arena(net, bits=24)
    for step in range(steps):
        rows = data[torch.randint(0, len(data), (bs,), generator=g)]
        flat = arena.get().requires_grad_()
        logits = functional_call(net, arena.views(flat), (rows[:, :-1],))
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        (grad,) = torch.autograd.grad(loss, flat)
        arena.apply(grad, lr * min(1.0, (step + 1) / 15) * (1 - 0.8 * step / steps))
        if step % 34 == 0 or step == steps - 1:
            print(f"{step:4d} {loss.item():.4f}")


main()
