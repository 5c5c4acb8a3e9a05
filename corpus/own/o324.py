import math
import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS, LEN, BATCH, DIM = 300, 32, 32, 64


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, DIM)
        self.norm1 = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.mix = nn.Linear(DIM, DIM)
        self.norm2 = nn.LayerNorm(DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.project = nn.Linear(DIM, DIM, bias=False)
        nn.init.xavier_uniform_(self.project.weight)

    def forward(self, ids):
        x = self.words(ids) * math.sqrt(DIM)
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        x = x + self.ff(self.norm2(x))
        return self.project(x.sum(dim=1))


def unit(z):
    return z * torch.rsqrt((z * z).sum(dim=-1, keepdim=True))


class Pairs:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.topics = torch.randint(WORDS, (40, 12), generator=self.g)

    def view(self, topic):
        noise = torch.randint(WORDS, (len(topic), LEN), generator=self.g)
        pick = torch.randint(12, (len(topic), LEN), generator=self.g)
        own = self.topics[topic].gather(1, pick)
        keep = torch.rand(len(topic), LEN, generator=self.g) < 0.3
        return torch.where(keep, own, noise)

    def batch(self):
        topic = torch.randperm(40, generator=self.g)[:BATCH]
        return self.view(topic), self.view(topic)


torch.manual_seed(21)
pairs = Pairs(8)
left, right = Tower(), Tower()
params = list(left.parameters()) + list(right.parameters())
opt = torch.optim.AdamW(params, lr=2e-3, weight_decay=0.01)
labels = torch.arange(BATCH)

for step in range(1, 241):
    a, b = pairs.batch()
    za = unit(left(a).half())
    zb = unit(right(b).half())
    sim = (za @ zb.t()).float() / 0.1
    loss = (F.cross_entropy(sim, labels) + F.cross_entropy(sim.t(), labels)) / 2
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    if step == 1 or step % 20 == 0:
        top1 = (sim.argmax(1) == labels).float().mean().item()
        print(f"step {step:3d}  nce {loss.item():.4f}  top1 {top1:.3f}")
