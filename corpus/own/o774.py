import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(61)
torch.set_num_threads(1)
WORLD, PER, NEG = 4, 24, 2
N, D, GROUPS = 1200, 32, 60

center = torch.randn(GROUPS, D)
group = torch.arange(N) % GROUPS
latent = center[group] + 0.7 * torch.randn(N, D)
mixq, mixd = torch.randn(D, 40) / D ** 0.5, torch.randn(D, 40) / D ** 0.5


def q_view(i):
    return torch.tanh(latent[i] @ mixq) + 0.15 * torch.randn(len(i), 40)


def d_view(i):
    return torch.tanh(latent[i] @ mixd) + 0.05 * torch.randn(len(i), 40)


def hard(i):
    return (i + GROUPS * torch.randint(1, N // GROUPS, i.shape)) % N


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(40, 96), nn.ReLU(), nn.Linear(96, 48))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class Rank:
    """one worker's share of the batch: PER queries, PER positives, NEG*PER negatives"""

    def __init__(self, ids):
        self.q = q_view(ids)
        self.docs = [d_view(ids)] + [d_view(hard(ids)) for _ in range(NEG)]


def gather(parts):
    return torch.cat([torch.cat(p) for p in parts])


qt, dt = Tower(), Tower()
opt = torch.optim.AdamW([*qt.parameters(), *dt.parameters()], lr=3e-3, weight_decay=1e-3)
TEMP = 0.07


@torch.no_grad()
def recall():
    ids = torch.arange(N)
    sim = qt(q_view(ids)) @ dt(d_view(ids)).T
    rank = (sim > sim.diagonal()[:, None]).sum(1) + 1
    return (rank == 1).float().mean().item(), (1 / rank).mean().item()


print("start R@1 %.3f MRR %.3f" % recall())
for step in range(300):
    ids = torch.randperm(N)[:WORLD * PER]
    ranks = [Rank(i) for i in ids.split(PER)]
    emb = [[dt(d) for d in r.docs] for r in ranks]
    bank = gather(emb)
    loss = 0.0
    for r, worker in enumerate(ranks):
        scores = qt(worker.q) @ bank.T / TEMP
        labels = torch.arange(r * PER, (r + 1) * PER)
        loss = loss + F.cross_entropy(scores, labels) / WORLD
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0 or step == 299:
        print(f"step {step:3d} loss {loss.item():.4f} R@1 %.3f MRR %.3f" % recall())
