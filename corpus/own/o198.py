import time
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(70)

Q, C, L, V = 6, 6, 12, 60


class CrossEncoder(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.tok = nn.Embedding(V + 2, dim)
        self.pos = nn.Embedding(2 * L + 1, dim)
        self.seg = nn.Embedding(2, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 96, 0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.score = nn.Linear(dim, 1)
        self.register_buffer("segments", torch.tensor([0] * (L + 1) + [1] * L))

    def forward(self, ids):
        h = self.tok(ids) + self.pos.weight + self.seg(self.segments)
        return self.score(self.enc(h)[:, 0]).squeeze(-1)


class Reranker:
    def __init__(self, lr=2e-3):
        self.net = CrossEncoder()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=lr)

    def encode_pair(self, query, doc):
        return torch.cat([torch.tensor([V]), query, doc])

    def scores(self, queries, docs):
        table = []
        for q, candidates in zip(queries, docs):
            row = [self.net(self.encode_pair(q, d).unsqueeze(0)) for d in candidates]
            table.append(torch.cat(row))
        return torch.stack(table)

    def update(self, queries, docs, gold):
        s = self.scores(queries, docs)
        loss = F.cross_entropy(s, gold)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item(), (s.argmax(-1) == gold).float().mean().item()


def make_batch():
    half = V // 2
    queries = torch.randint(0, half, (Q, L))
    docs = torch.randint(half, V, (Q, C, L))
    gold = torch.randint(0, C, (Q,))
    for i in range(Q):
        docs[i, gold[i], torch.randperm(L)[:4]] = torch.randint(0, half, (4,))
    return queries, docs, gold


ranker = Reranker()
t0 = time.time()
for step in range(60):
    loss, acc = ranker.update(*make_batch())
    if step % 6 == 0 or step == 59:
        print(f"step {step} loss {loss:.4f} acc {acc:.2f} sec/step {(time.time() - t0) / (step + 1):.3f}")
