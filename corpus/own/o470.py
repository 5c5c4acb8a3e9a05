import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, CTX, DIM = 40, 24, 64


class Process:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.nxt = torch.randint(0, VOCAB, (VOCAB, 3), generator=self.g)

    def batch(self, n):
        x = torch.zeros(n, CTX + 1, dtype=torch.long)
        x[:, 0] = torch.randint(0, VOCAB, (n,), generator=self.g)
        for t in range(CTX):
            u = torch.rand(n, generator=self.g)
            pick = (u > 0.7).long() + (u > 0.9).long()
            x[:, t + 1] = self.nxt[x[:, t], pick]
        return x[:, :-1], x[:, 1:]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 4, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(CTX, DIM) * 0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, x):
        h = self.emb(x) + self.pos
        for l in self.layers:
            h = l(h)
        return self.head(F.layer_norm(h, (DIM,)))


class LowRank(nn.Module):
    def __init__(self, base, rank=8, alpha=16.0):
        super().__init__()
        self.base = base
        self.gain = alpha / rank
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * base.in_features ** -0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + self.gain * (x @ self.down.T) @ self.up.T


def wrap(module):
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, LowRank(child))
        else:
            wrap(child)


def loop(model, process, params, steps, lr, tag):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for i in range(steps):
        x, y = process.batch(48)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 20 == 0 or i == steps - 1:
            print(f"{tag} {i:4d} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    torch.manual_seed(5)
    source, target = Process(100), Process(200)
    model = Model()
    loop(model, source, model.parameters(), 120, 3e-3, "pretrain")
    model.requires_grad_(False)
    wrap(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    print("adapting", sum(p.numel() for p in trainable), "parameters")
    loop(model, target, trainable, 240, 4e-3, "adapt")
    with torch.no_grad():
        x, y = target.batch(256)
        print(f"held-out target loss {F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item():.4f}")
