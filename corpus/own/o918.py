import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
V, L, D = 40, 24, 64
CLS, SEP, WHO, WHERE = 0, 1, 2, 3


def qa_batch(n, shift):
    ctx = torch.randint(10, V, (n, L))
    q = torch.randint(0, 2, (n,))
    key = torch.tensor([4, 5])[q]
    other = torch.tensor([5, 4])[q]
    slots = torch.rand(n, 4).argsort(1)[:, :2] * 5 + 4
    length = torch.randint(1, 3, (n,))
    rows = torch.arange(n)
    ctx[rows, slots[:, 0]], ctx[rows, slots[:, 1]] = key, other
    ctx[rows, slots[:, 0] + shift + length] = 6
    start, end = slots[:, 0] + shift, slots[:, 0] + shift + length - 1
    ctx[:, 0], ctx[:, 1], ctx[:, 2] = CLS, WHO + q, SEP
    return ctx, start, end


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = nn.MultiheadAttention(D, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class SpanReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.pos = nn.Embedding(L, D)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.norm = nn.LayerNorm(D)
        self.span = nn.Linear(D, 2)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for blk in self.blocks:
            x = blk(x)
        start, end = self.span(self.norm(x)).float().unbind(-1)
        return start, end


def span_loss(model, batch):
    ids, s, e = batch
    ps, pe = model(ids)
    return 0.5 * (F.cross_entropy(ps, s) + F.cross_entropy(pe, e))


@torch.no_grad()
def evaluate(model, batch):
    model.eval()
    ids, s, e = batch
    ps, pe = model(ids)
    exact = ((ps.argmax(-1) == s) & (pe.argmax(-1) == e)).float().mean().item()
    loss = 0.5 * (F.cross_entropy(ps, s) + F.cross_entropy(pe, e)).item()
    model.train()
    return loss, exact


def slices(data, size, steps):
    n = len(data[0])
    for _ in range(steps):
        idx = torch.randint(0, n, (size,))
        yield tuple(t[idx] for t in data)


source, target, heldout = qa_batch(3000, 1), qa_batch(2000, 2), qa_batch(300, 2)
model = SpanReader()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, batch in enumerate(slices(source, 24, 150)):
    loss = span_loss(model, batch)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(f"source step {step} loss {loss.item():.4f}")
print("source domain loss %.4f exact %.3f" % evaluate(model, qa_batch(200, 1)))
print("target domain before tuning: loss %.4f exact %.3f" % evaluate(model, heldout))

opt = torch.optim.AdamW(model.parameters(), lr=1.5e-4, weight_decay=0.0)
for step, batch in enumerate(slices(target, 24, 260)):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = span_loss(model, batch)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 50 == 0 or step == 259:
        print(f"target step {step} loss {loss.item():.4f}")
print("target domain after tuning: loss %.4f exact %.3f" % evaluate(model, heldout))
