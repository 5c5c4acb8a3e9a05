import torch
import torch.nn as nn
import torch.nn.functional as F

KEYS, VALUES, PAIRS = 24, 10, 14


class Lookup(torch.utils.data.IterableDataset):
    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        while True:
            keys = torch.randperm(KEYS, generator=g)[:PAIRS]
            vals = torch.randint(VALUES, (PAIRS,), generator=g)
            ask = torch.randint(PAIRS, (1,), generator=g).item()
            yield torch.stack([keys, vals], 1), keys[ask], vals[ask]


class MultiHead(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.dk = h, d // h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, memory):
        q = self.q(x).unflatten(-1, (self.h, self.dk))
        k = self.k(memory).unflatten(-1, (self.h, self.dk))
        v = self.v(memory).unflatten(-1, (self.h, self.dk))
        scores = torch.einsum("bqhd,bkhd->bqkh", q, k) / self.dk ** 0.5
        weights = F.softmax(scores, dim=-1)
        return self.o(torch.einsum("bqkh,bkhd->bqhd", weights, v).flatten(-2))


class Reader(nn.Module):
    def __init__(self, d=64, h=4):
        super().__init__()
        self.key = nn.Embedding(KEYS, d)
        self.val = nn.Embedding(VALUES, d)
        self.hops = nn.ModuleList([MultiHead(d, h) for _ in range(1)])
        self.n1 = nn.ModuleList([nn.LayerNorm(d) for _ in range(1)])
        self.n2 = nn.ModuleList([nn.LayerNorm(d) for _ in range(1)])
        self.ff = nn.ModuleList([nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)) for _ in range(1)])
        self.out = nn.Linear(d, VALUES)

    def forward(self, pairs, ask):
        memory = self.key(pairs[..., 0]) + self.val(pairs[..., 1])
        x = self.key(ask)[:, None]
        for hop, n1, n2, ff in zip(self.hops, self.n1, self.n2, self.ff):
            x = x + hop(n1(x), memory)
            x = x + ff(n2(x))
        return self.out(x[:, 0])


if __name__ == "__main__":
    torch.manual_seed(70)
    loader = iter(torch.utils.data.DataLoader(Lookup(71), batch_size=64))
    reader = Reader()
    optimizer = torch.optim.RAdam(reader.parameters(), lr=3e-3)
    recent = []
    for step in range(180):
        pairs, ask, want = next(loader)
        logits = reader(pairs, ask)
        loss = F.cross_entropy(logits, want)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent = (recent + [loss.item()])[-25:]
        if step % 20 == 0 or step == 179:
            print(f"step={step} loss={sum(recent) / len(recent):.4f} acc={(logits.argmax(-1) == want).float().mean():.3f}")
