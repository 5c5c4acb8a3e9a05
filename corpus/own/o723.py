import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(55)
VOCAB, TOPICS, LQ, LD = 300, 400, 5, 14
SYN = torch.randperm(VOCAB)
TOPIC_WORDS = torch.stack([torch.randperm(VOCAB)[:6] for _ in range(TOPICS)])
COMMON = torch.softmax(torch.randn(VOCAB) * 1.5, 0)


def queries(topic):
    pick = torch.rand(len(topic), 6).argsort(1)[:, :3]
    w = TOPIC_WORDS[topic].gather(1, pick)
    return torch.cat([w, torch.multinomial(COMMON, len(topic) * 2, replacement=True).view(-1, 2)], 1)


def documents(topic):
    w = SYN[TOPIC_WORDS[topic]]
    filler = SYN[torch.multinomial(COMMON, len(topic) * 8, replacement=True).view(-1, 8)]
    d = torch.cat([w, filler], 1)
    return d.gather(1, torch.rand(d.shape).argsort(1))


class TokenEncoder(nn.Module):
    def __init__(self, n_types=2, d=64, out=32):
        super().__init__()
        self.word = nn.Embedding(VOCAB, d)
        self.role = nn.Embedding(n_types, d)
        self.layer = nn.TransformerEncoderLayer(d, 4, 128, 0.0, batch_first=True, norm_first=True)
        self.down = nn.Linear(d, out)

    def forward(self, ids, kind):
        h = self.layer(self.word(ids) + self.role.weight[kind])
        return F.normalize(self.down(h))


def maxsim(q, d):
    sim = torch.einsum("bqe,cde->bcqd", q, d)
    return sim.amax(-1).sum(-1)


enc = TokenEncoder()
log_temp = nn.Parameter(torch.tensor(1.0))
opt = torch.optim.AdamW([{"params": enc.parameters()}, {"params": [log_temp], "weight_decay": 0.0}], lr=2e-3)
train_topics = torch.arange(0, 320)
test_topics = torch.arange(320, 400)

for step in range(1, 401):
    t = train_topics[torch.randperm(len(train_topics))[:48]]
    s = maxsim(enc(queries(t), 0), enc(documents(t), 1)) * log_temp.exp()
    target = torch.arange(len(t))
    loss = 0.5 * (F.cross_entropy(s, target) + F.cross_entropy(s.t(), target))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        with torch.no_grad():
            s = maxsim(enc(queries(test_topics), 0), enc(documents(test_topics), 1))
            rank = (s > s.diagonal()[:, None]).sum(1).float()
        print(f"{step:4d} loss {loss.item():.4f} scale {log_temp.exp().item():.2f} "
              f"unseen topics: R@1 {(rank == 0).float().mean():.3f} MRR {(1 / (1 + rank)).mean():.3f}")
