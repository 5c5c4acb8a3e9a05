import torch
from torch import nn
import torch.nn.functional as F

EVENTS, LENGTH, BATCH, STEPS = 30, 14, 48, 260
TASKS = {"actor": 6, "severity": 6, "origin": 6, "outcome": 6}


def sample(n, g):
    x = torch.randint(24, EVENTS, (n, LENGTH), generator=g)
    y = {}
    slots = torch.rand(n, LENGTH, generator=g).argsort(1)[:, : len(TASKS)]
    for i, (name, k) in enumerate(TASKS.items()):
        v = torch.randint(0, k, (n,), generator=g)
        x[torch.arange(n), slots[:, i]] = 6 * i + v
        y[name] = v
    return x, y


class TaskHead(nn.Module):
    def __init__(self, dim, n_out, drop=0.1):
        super().__init__()
        self.query = nn.Parameter(torch.randn(dim) / dim**0.5)
        self.key = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Dropout(drop), nn.Linear(dim, n_out))

    def forward(self, h):
        w = (self.key(h) @ self.query).softmax(-1)
        return self.mlp((w.unsqueeze(-1) * h).sum(1))


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.tok = nn.Embedding(EVENTS, dim)
        self.pos = nn.Parameter(0.1 * torch.randn(LENGTH, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(self.layers(self.tok(x) + self.pos))


class MultiTaskModel(nn.Module):
    def __init__(self, tasks, dim=48):
        super().__init__()
        self.names = list(tasks)
        self.encoder = Encoder(dim)
        n_out = max(tasks.values())
        self.heads = nn.ModuleList([TaskHead(dim, n_out)] * len(tasks))

    def forward(self, x):
        h = self.encoder(x)
        return {name: head(h) for name, head in zip(self.names, self.heads)}


class MultiTaskTrainer:
    def __init__(self, model, weights):
        self.model, self.weights = model, weights
        self.opt_enc = torch.optim.AdamW(model.encoder.parameters(), lr=1e-3)
        self.opt_heads = torch.optim.AdamW(model.heads.parameters(), lr=2e-3)

    def losses(self, x, y):
        out = self.model(x)
        return {k: F.cross_entropy(out[k], y[k]) for k in y}

    def step(self, x, y):
        per_task = self.losses(x, y)
        loss = sum(self.weights[k] * v for k, v in per_task.items()) / sum(self.weights.values())
        for o in (self.opt_enc, self.opt_heads):
            o.zero_grad()
        loss.backward()
        for o in (self.opt_enc, self.opt_heads):
            o.step()
        return loss.item(), {k: v.item() for k, v in per_task.items()}

    @torch.no_grad()
    def evaluate(self, x, y):
        self.model.eval()
        out = self.model(x)
        acc = {k: (out[k].argmax(1) == y[k]).float().mean().item() for k in y}
        self.model.train()
        return acc


torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
trainer = MultiTaskTrainer(MultiTaskModel(TASKS), dict(actor=1.0, severity=1.0, origin=1.0, outcome=1.5))
for step in range(STEPS):
    total, parts = trainer.step(*sample(BATCH, g))
    if step % 20 == 0 or step == STEPS - 1:
        print(f"{step:4d} loss {total:.4f}  " + "  ".join(f"{k} {v:.3f}" for k, v in parts.items()))
print("accuracy:", {k: round(v, 3) for k, v in trainer.evaluate(*sample(1000, g)).items()})
