import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(303)

TASKS = ["topic", "tone", "source"]


class SharedEncoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(16, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.body(self.emb(x) + self.pos.weight[: x.size(1)]).mean(1)


class MultiTask(nn.Module):
    def __init__(self, vocab=60, dim=48, n_out=5):
        super().__init__()
        self.encoder = SharedEncoder(vocab, dim)
        self.heads = nn.ModuleDict(dict.fromkeys(TASKS, nn.Linear(dim, n_out)))

    def forward(self, x):
        h = self.encoder(x)
        return {t: self.heads[t](h) for t in TASKS}


def sample(n):
    labels = {t: torch.randint(0, 5, (n,)) for t in TASKS}
    x = torch.randint(15, 60, (n, 16))
    for j, t in enumerate(TASKS):
        for r in range(2):
            x[torch.arange(n), torch.randint(4, (n,)) + 4 * j + 2 * r] = 5 * j + labels[t]
    return x, labels


model = MultiTask()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(200):
    x, labels = sample(32)
    out = model(x)
    parts = {t: F.cross_entropy(out[t], labels[t]) for t in TASKS}
    loss = sum(parts.values()) / len(TASKS)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 199:
        print(step, "loss %.4f" % loss.item(), {t: round(v.item(), 3) for t, v in parts.items()})
