import torch
import torch.nn as nn
import torch.nn.functional as F

AA = "ACDEFGHIKLMNPQRSTVWY"
MASK = len(AA)
L, FAMS = 36, 12


class Families:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.consensus = torch.randint(0, 20, (FAMS, L), generator=self.g)
        self.partner = torch.stack([torch.randperm(L, generator=self.g) for _ in range(FAMS)])
        self.swap = torch.randperm(20, generator=self.g)

    def draw(self, n):
        fam = torch.randint(0, FAMS, (n,), generator=self.g)
        seq = self.consensus[fam].clone()
        mut = torch.rand(n, L, generator=self.g) < 0.15
        seq[mut] = torch.randint(0, 20, (int(mut.sum()),), generator=self.g)
        half = self.partner[fam]
        a, b = half[:, :6], half[:, 6:12]
        seq.scatter_(1, b, self.swap[seq.gather(1, a)])
        return seq

    def masked(self, n, rate=0.2):
        seq = self.draw(n)
        hide = torch.rand(seq.shape, generator=self.g) < rate
        hide[:, 0] |= ~hide.any(1)
        return torch.where(hide, torch.full_like(seq, MASK), seq), seq, hide


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, D))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class MiniESM(nn.Module):
    def __init__(self, d=48, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(21, d), nn.Embedding(L, d)
        nn.init.normal_(self.tok.weight, std=0.3)
        nn.init.normal_(self.pos.weight, std=0.3)
        self.layers = nn.ModuleList(Layer(d, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 20)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


class LeanAdam:

    def __init__(self, params, lr, b1=0.9, b2=0.999, eps=1e-8):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.b1, self.b2, self.eps = lr, b1, b2, eps
        self.slots, self.clock = {}, 0

    def clear(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def update(self, scale=1.0):
        self.clock += 1
        c1, c2 = 1 - self.b1 ** self.clock, 1 - self.b2 ** self.clock
        work = [(p, p.grad) for p in self.params if p.grad is not None]
        for w, g in work:
            if w not in self.slots:
                self.slots[w] = torch.zeros_like(w), torch.zeros_like(w)
            m, v = self.slots[w]
            m.mul_(self.b1).add_(g, alpha=1 - self.b1)
            v.mul_(self.b2).addcmul_(g, g, value=1 - self.b2)
            w.addcdiv_(m / c1, (v / c2).sqrt_().add_(self.eps), value=-self.lr * scale)


def main():
    torch.manual_seed(0)
    data = Families(21)
    model = MiniESM()
    opt = LeanAdam(model.parameters(), lr=8e-3)
    vx, vy, vm = data.masked(400)
    for it in range(1, 301):
        x, y, hide = data.masked(32)
        loss = F.cross_entropy(model(x)[hide], y[hide])
        opt.clear()
        loss.backward()
        opt.update(scale=min(1.0, it / 20))
        if it % 30 == 0 or it == 1:
            with torch.no_grad():
                val = F.cross_entropy(model(vx)[vm], vy[vm])
            print(f"it {it:3d} train {loss.item():.3f} val {val.item():.3f}")


main()
