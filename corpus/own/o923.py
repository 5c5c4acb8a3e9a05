import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(19)
VOCAB, SEQ, DIM, PREFIX = 30, 16, 64, 6
tables = torch.stack([torch.randperm(VOCAB) for _ in range(4)])


def stream(n, which=None):
    kind = torch.randint(0, 4, (n,)) if which is None else torch.full((n,), which)
    x = torch.randint(0, VOCAB, (n, SEQ + 1))
    for t in range(1, SEQ + 1):
        x[:, t] = torch.where(torch.rand(n) < 0.92, tables[kind, x[:, t - 1]], x[:, t])
    return x


class PrefixLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(SEQ, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)
        self.prefix = None

    def forward(self, ids):
        x = self.emb(ids) + self.pos(torch.arange(ids.size(1)))
        k = 0
        if self.prefix is not None:
            k = self.prefix.size(0)
            x = torch.cat([self.prefix.expand(len(ids), -1, -1), x], 1)
        n = x.size(1)
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1)
        return self.head(self.norm(self.body(x, mask=mask)))[:, k:]


def loss_fn(model, x):
    return F.cross_entropy(model(x[:, :-1]).transpose(1, 2), x[:, 1:])


def evaluate(model, x):
    model.eval()
    with torch.no_grad():
        out = loss_fn(model, x).item()
    model.train()
    return out


model = PrefixLM()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
base = stream(6000)
for step in range(350):
    loss = loss_fn(model, base[torch.randint(0, len(base), (32,))])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 50 == 0:
        print(f"base {step} loss {loss.item():.4f}")
print(f"base held-out {evaluate(model, stream(300)):.4f}")

model.requires_grad_(False)
held = stream(300, which=2)
print(f"task held-out without prefix {evaluate(model, held):.4f}")
model.prefix = nn.Parameter(model.emb.weight[torch.randint(0, VOCAB, (PREFIX,))].clone())
tuner = torch.optim.Adam([model.prefix], lr=3e-2)
task = stream(1500, which=2)
for step in range(150):
    loss = loss_fn(model, task[torch.randint(0, len(task), (32,))])
    tuner.zero_grad()
    loss.backward()
    tuner.step()
    if step % 25 == 0 or step == 149:
        print(f"prefix {step} loss {loss.item():.4f}")
print(f"task held-out with prefix {evaluate(model, held):.4f}")
