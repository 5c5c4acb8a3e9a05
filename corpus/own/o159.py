import math
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(31)

V, D, LEN, BATCH, CHUNKS, STEPS = 200, 48, 12, 32, 2, 90
concept = torch.randint(0, V // 2, (600, 8))


def draw(pool, n):
    k = torch.randperm(len(pool))[:n]
    rows = pool[k]
    q = rows.gather(1, torch.rand(n, 8).argsort(1))
    d = rows.gather(1, torch.rand(n, 8).argsort(1)) + V // 2
    noise_q, noise_d = torch.randint(0, V, (n, LEN - 8)), torch.randint(0, V, (n, LEN - 8))
    return torch.cat([q, noise_q], 1), torch.cat([d, noise_d], 1)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True), 2,
            enable_nested_tensor=False)
        self.proj = nn.Linear(D, D, bias=False)

    def forward(self, x):
        return F.normalize(self.proj(self.enc(self.emb(x)).mean(1)), dim=-1)


def info_nce(a, b, scale):
    sim = a @ b.t() * scale
    tgt = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(sim, tgt) + F.cross_entropy(sim.t(), tgt))


def encode_all(tower, x):
    with torch.no_grad():
        return torch.cat([tower(x[i::CHUNKS]) for i in range(CHUNKS)])


def push(tower, x, grad):
    for part, g in zip(x.chunk(CHUNKS), grad.chunk(CHUNKS)):
        (tower(part) * g).sum().backward()


query, doc = Tower(), Tower()
scale = nn.Parameter(torch.tensor(math.log(10.0)))
params = list(query.parameters()) + list(doc.parameters()) + [scale]
opt = torch.optim.AdamW(params, lr=2e-3, weight_decay=0.01)

for step in range(STEPS):
    q, d = draw(concept[:500], BATCH)
    eq = encode_all(query, q).requires_grad_()
    ed = encode_all(doc, d).requires_grad_()
    loss = info_nce(eq, ed, scale.exp())
    opt.zero_grad()
    loss.backward()
    push(query, q, eq.grad)
    push(doc, d, ed.grad)
    opt.step()
    if step % 10 == 0 or step == STEPS - 1:
        print(f"step {step} loss {loss.item():.4f} scale {scale.exp().item():.2f}")

with torch.no_grad():
    q, d = draw(concept[500:], 100)
    top = (query(q) @ doc(d).t()).argmax(1)
print(f"recall@1 on unseen concepts {(top == torch.arange(100)).float().mean().item():.3f}")
