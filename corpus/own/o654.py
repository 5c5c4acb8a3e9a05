import torch
import torch.nn as nn
import torch.nn.functional as F

ENTITIES, SURFACE, FILLER = 64, 2, 30
VOCAB = 1 + ENTITIES * SURFACE * 2 + FILLER
Q_LEN, P_LEN = 4, 8
BATCH, STEPS, LR = 32, 300, 4e-3


class Tower(nn.Module):
    def __init__(self, dim=48, max_len=32):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(max_len, dim)
        nn.init.normal_(self.tok.weight, std=0.3)
        nn.init.normal_(self.pos.weight, std=0.05)
        self.block = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        return self.proj(self.norm(self.block(h)).mean(1))


class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.query_tower = Tower()
        self.passage_tower = Tower()
        self.log_temp = nn.Parameter(torch.tensor(2.3))

    def embed_queries(self, ids):
        return F.normalize(self.query_tower(ids), dim=-1)

    @torch.no_grad()
    def embed_passages(self, ids, chunk=16):
        out = [F.normalize(self.passage_tower(part), dim=-1) for part in ids.split(chunk)]
        return torch.cat(out)

    def forward(self, q, p):
        sims = self.embed_queries(q) @ self.embed_passages(p).T
        return sims * self.log_temp.exp().clamp(max=50.0)


def fill(n, length, g):
    return torch.randint(1 + ENTITIES * SURFACE * 2, VOCAB, (n, length), generator=g)


def pairs(n, g, distinct=False):
    e = torch.randperm(ENTITIES, generator=g)[:n] if distinct else torch.randint(0, ENTITIES, (n,), generator=g)
    q, p = fill(n, Q_LEN, g), fill(n, P_LEN, g)
    rows = torch.arange(n)
    for ids, side, k in ((q, 0, 1), (p, 1, 2)):
        for _ in range(k):
            where = torch.randint(0, ids.shape[1], (n,), generator=g)
            form = torch.randint(0, SURFACE, (n,), generator=g)
            ids[rows, where] = 1 + (side * ENTITIES + e) * SURFACE + form
    return q, p


def main():
    torch.manual_seed(51)
    g = torch.Generator().manual_seed(52)
    model = DualEncoder()
    opt = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, LR, total_steps=STEPS, pct_start=0.1)
    vq, vp = pairs(ENTITIES, g, distinct=True)
    target = torch.arange(BATCH)
    for step in range(STEPS):
        q, p = pairs(BATCH, g, distinct=True)
        logits = model(q, p)
        loss = 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 30 == 0 or step == STEPS - 1:
            with torch.no_grad():
                top1 = (model(vq, vp).argmax(-1) == torch.arange(ENTITIES)).float().mean()
            print(f"step {step:4d} loss {loss.item():.4f} recall@1 {top1.item():.3f}")


if __name__ == "__main__":
    main()
