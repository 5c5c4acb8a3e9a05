import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(19)
torch.set_num_threads(1)
DOCS, VOC, TOPICS = 600, 200, 30

topic_words = torch.rand(TOPICS, VOC).argsort(1)[:, :25]
doc_topic = torch.arange(DOCS) % TOPICS
doc_core = topic_words[doc_topic].gather(1, torch.rand(DOCS, 25).argsort(1)[:, :6])
docs = torch.cat([doc_core, topic_words[doc_topic].gather(1, torch.randint(0, 25, (DOCS, 8)))], 1)
synonym = torch.randperm(VOC)


def queries(ids):
    core = doc_core[ids].gather(1, torch.rand(len(ids), 6).argsort(1)[:, :4])
    noise = torch.randint(0, VOC, (len(ids), 1))
    return torch.cat([synonym[core], noise], 1)


class Tower(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.e = nn.Embedding(VOC, d)
        self.drop = nn.Dropout(0.1)
        self.f = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, t):
        h = self.drop(self.e(t)).mean(1) * 3
        return F.normalize(h + self.f(h), dim=-1)


def chunked(tower, tokens, size=32):
    states, reps = [], []
    with torch.no_grad():
        for part in tokens.split(size):
            states.append(torch.get_rng_state())
            reps.append(tower(part))
    return torch.cat(reps).requires_grad_(), states


def replay(tower, tokens, grads, states, size=32):
    after = torch.get_rng_state()
    for part, g, s in zip(tokens.split(size), grads.split(size), states):
        torch.set_rng_state(s)
        (tower(part) * g).sum().backward()
    torch.set_rng_state(after)


qt, dt = Tower(), Tower()
scale = nn.Parameter(torch.tensor(2.5))
opt = torch.optim.AdamW([*qt.parameters(), *dt.parameters(), scale], lr=4e-3, weight_decay=1e-3)


@torch.no_grad()
def mrr():
    qt.eval(), dt.eval()
    ids = torch.arange(0, DOCS, 2)
    sim = qt(queries(ids)) @ dt(docs).T
    rank = (sim > sim.gather(1, ids[:, None])).sum(1) + 1
    qt.train(), dt.train()
    return (1 / rank).mean().item(), (rank <= 10).float().mean().item(), sim


B = 128
print("start: MRR %.3f R@10 %.3f" % mrr()[:2])
for step in range(180):
    ids = torch.randperm(DOCS)[:B]
    hard = (ids + TOPICS * torch.randint(1, DOCS // TOPICS, (B,))) % DOCS
    q_tok, d_tok = queries(ids), torch.cat([docs[ids], docs[hard]])
    q, qs = chunked(qt, q_tok)
    d, ds = chunked(dt, d_tok)
    logits = q @ d.T * scale.exp()
    other = torch.cat([ids, hard])
    clash = (other[None] == ids[:, None]) & (torch.arange(2 * B)[None] != torch.arange(B)[:, None])
    loss = F.cross_entropy(logits.masked_fill(clash, -1e4), torch.arange(B))
    opt.zero_grad()
    loss.backward()
    replay(qt, q_tok, q.grad, qs)
    replay(dt, d_tok, d.grad, ds)
    opt.step()
    with torch.no_grad():
        scale.clamp_(max=4.0)
    if step % 20 == 0 or step == 179:
        print(f"step {step:3d} loss {loss.item():.4f} temperature {1 / scale.exp().item():.4f} "
              "MRR %.3f R@10 %.3f" % mrr()[:2])
