import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(77)
N_DOCS, VOCAB, DOC_LEN, Q_LEN = 4000, 500, 16, 5


def build_corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    docs = torch.randint(0, VOCAB, (n, DOC_LEN), generator=g)
    take = torch.rand(n, DOC_LEN, generator=g).argsort(1)[:, :Q_LEN]
    queries = (docs.gather(1, take) * 3 + 1) % VOCAB
    return TensorDataset(queries, docs)


class Tower(nn.Module):
    def __init__(self, dim=96, heads=4):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, ids):
        x = self.emb(ids)
        x = self.norm(x + self.attn(x, x, x, need_weights=False)[0])
        return F.normalize(self.proj(x.mean(1)), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.doc = Tower(), Tower()
        self.log_tau = nn.Parameter(torch.tensor(2.5))

    def forward(self, q, d):
        return self.query(q) @ self.doc(d).t() * self.log_tau.exp().clamp(max=50.0)


class RetrievalTrainer:
    def __init__(self, model, data, batch_size=96, lr=3e-3, max_steps=300):
        self.model, self.max_steps, self.epoch = model, max_steps, 0
        self.sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=5)
        self.loader = DataLoader(data, batch_size=batch_size, sampler=self.sampler, drop_last=True)
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)

    def fetch(self, step):
        self.sampler.set_epoch(step)
        return next(iter(self.loader))

    def train(self):
        for step in range(self.max_steps):
            q, d = self.fetch(step)
            sim = self.model(q, d)
            gold = torch.arange(len(q))
            loss = 0.5 * (F.cross_entropy(sim, gold) + F.cross_entropy(sim.t(), gold))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if step % 30 == 0:
                print(f"step {step:3d} | contrastive loss {loss.item():.4f}")


@torch.no_grad()
def recall_at_1(model, data):
    q, d = data.tensors
    return (model.eval()(q, d).argmax(1) == torch.arange(len(q))).float().mean().item()


trainer = RetrievalTrainer(DualEncoder(), build_corpus(N_DOCS, 1))
trainer.train()
print(f"unseen corpus recall@1 {recall_at_1(trainer.model, build_corpus(400, 2)):.3f}")
