import torch
import torch.nn as nn
import torch.nn.functional as F

TASKS = {"intent": (0, 3), "domain": (1, 5), "tone": (2, 7), "route": (3, 11)}
CLASSES, VOCAB, LEN = 6, 120, 10


class Messages(torch.utils.data.IterableDataset):
    def __init__(self, seed, batch):
        self.seed, self.batch = seed, batch

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        groups = torch.randint(CLASSES, (len(TASKS), VOCAB), generator=g)
        while True:
            x = torch.randint(VOCAB, (self.batch, LEN), generator=g)
            yield x, {name: groups[i, x[:, slot]] for i, (name, (slot, _)) in enumerate(TASKS.items())}


class Trunk(nn.Module):
    def __init__(self, d, depth):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.randn(LEN + 1, d) * 0.5)
        self.cls = nn.Parameter(torch.randn(d) * 0.5)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(depth))
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        h = torch.cat([self.cls.expand(len(x), 1, -1), self.tok(x)], 1) + self.pos
        for layer in self.layers:
            h = layer(h)
        return self.norm(h[:, 0])


class MultiTask(nn.Module):
    def __init__(self, d=64, depth=2):
        super().__init__()
        self.trunk = Trunk(d, depth)
        self.heads = nn.ModuleDict(dict.fromkeys(TASKS, nn.Linear(d, CLASSES)))

    def forward(self, x):
        z = self.trunk(x)
        return {name: head(z) for name, head in self.heads.items()}


def run(steps=260):
    torch.manual_seed(2)
    model = MultiTask()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    stream = iter(torch.utils.data.DataLoader(Messages(20, 64), batch_size=None))
    for step in range(steps):
        x, y = next(stream)
        out = model(x)
        losses = {name: F.cross_entropy(out[name], y[name]) for name in TASKS}
        loss = torch.stack(list(losses.values())).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            parts = " ".join(f"{k}={v.item():.2f}" for k, v in losses.items())
            print(f"step {step} loss {loss.item():.4f} | {parts}")


if __name__ == "__main__":
    run()
