import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(31)
rng = np.random.default_rng(31)

N_PASS, P_LEN, Q_LEN, WORDS, TOPICS = 300, 16, 8, 150, 10
topic_words = rng.integers(1, WORDS, size=(TOPICS, 60))
passages = torch.from_numpy(np.stack([rng.choice(topic_words[i % TOPICS], P_LEN) for i in range(N_PASS)]))
dialect = WORDS + torch.from_numpy(rng.permutation(WORDS))


def make_queries(idx, gen):
    pos = torch.rand(len(idx), P_LEN, generator=gen).argsort(1)[:, :Q_LEN]
    words = passages[idx].gather(1, pos)
    noise = torch.randint(1, WORDS, words.shape, generator=gen)
    words = torch.where(torch.rand(words.shape, generator=gen) < 0.1, noise, words)
    return dialect[words]


class Tower(nn.Module):

    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(2 * WORDS, d)
        nn.init.normal_(self.emb.weight, std=0.2)
        self.enc = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.proj = nn.Linear(d, d, bias=False)

    def forward(self, ids):
        return F.normalize(self.proj(self.enc(self.emb(ids)).mean(1)), dim=-1)


class Retriever(nn.Module):
    def __init__(self, queue=128, momentum=0.9):
        super().__init__()
        self.online = Tower()
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.log_scale = nn.Parameter(torch.tensor(2.0))
        self.m = momentum
        self.register_buffer("queue", F.normalize(torch.randn(queue, 64), dim=-1))
        self.register_buffer("owner", torch.full((queue,), -1))

    @torch.no_grad()
    def update_target(self):
        for t, o in zip(self.target.parameters(), self.online.parameters()):
            t.lerp_(o, 1 - self.m)

    @torch.no_grad()
    def push(self, keys, idx):
        self.queue = torch.cat([keys, self.queue])[: len(self.queue)]
        self.owner = torch.cat([idx, self.owner])[: len(self.owner)]

    def loss(self, q_ids, p_ids, idx):
        q = self.online(q_ids)
        p = self.online(p_ids)
        scale = self.log_scale.clamp(max=4.0).exp()
        neg = (q @ self.queue.t()).masked_fill(self.owner[None] == idx[:, None], -1.0)
        target = torch.arange(len(idx))
        a = F.cross_entropy(scale * torch.cat([q @ p.t(), neg], 1), target)
        b = F.cross_entropy(scale * (p @ q.t()), target)
        with torch.no_grad():
            self.push(self.target(p_ids), idx)
        return 0.5 * (a + b)


model = Retriever()
live = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.Adam(live, lr=4e-3)
gen = torch.Generator().manual_seed(1)
for step in range(1, 301):
    idx = torch.randperm(N_PASS, generator=gen)[:32]
    loss = model.loss(make_queries(idx, gen), passages[idx], idx)
    opt.zero_grad()
    loss.backward()
    opt.step()
    model.update_target()
    if step % 30 == 0:
        print(f"step {step} contrastive loss {loss.item():.4f} scale {model.log_scale.exp().item():.2f}")

with torch.no_grad():
    idx = torch.arange(N_PASS)
    sim = model.online(make_queries(idx, gen)) @ model.online(passages).t()
    print(f"recall@1 {(sim.argmax(1) == idx).float().mean():.3f}  "
          f"recall@10 {(sim.topk(10).indices == idx[:, None]).any(1).float().mean():.3f}")
