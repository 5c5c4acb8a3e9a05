import time

import torch
import torch.nn as nn

torch.manual_seed(2024)
torch.set_num_threads(1)

config = dict(
    n_people=240,
    n_places=30,
    dim=32,
    dtype="float32",
    batch_size=192,
    max_iters=2000,
    lr=2e-3,
    betas=(0.9, 0.99),
    eval_interval=200,
)
RELATIONS = ["lives_in", "works_in", "same_town", "colleague"]


def build_graph(n_people, n_places, seed=0):
    g = torch.Generator().manual_seed(seed)
    town = torch.randint(0, n_places, (n_people,), generator=g)
    work = (town * 7 + torch.randint(0, 3, (n_people,), generator=g)) % n_places
    triples = []
    for i in range(n_people):
        triples.append((i, 0, n_people + int(town[i])))
        triples.append((i, 1, n_people + int(work[i])))
        for j in range(n_people):
            if i != j and town[i] == town[j]:
                triples.append((i, 2, j))
            if i != j and work[i] == work[j]:
                triples.append((i, 3, j))
    triples = torch.tensor(triples)
    triples = triples[torch.randperm(len(triples), generator=g)]
    cut = int(0.9 * len(triples))
    return triples[:cut], triples[cut:]


class ComplEx(nn.Module):
    def __init__(self, n_entities, n_relations, dim):
        super().__init__()
        self.ent_re = nn.Embedding(n_entities, dim)
        self.ent_im = nn.Embedding(n_entities, dim)
        self.rel_re = nn.Embedding(n_relations, dim)
        self.rel_im = nn.Embedding(n_relations, dim)

    def forward(self, head, rel):
        a, b = self.ent_re(head), self.ent_im(head)
        c, d = self.rel_re(rel), self.rel_im(rel)
        real = (a * c - b * d) @ self.ent_re.weight.T
        imag = (a * d + b * c) @ self.ent_im.weight.T
        return (real + imag) / self.ent_re.embedding_dim ** 0.5


train, valid = build_graph(config["n_people"], config["n_places"])
n_entities = config["n_people"] + config["n_places"]
print(f"{n_entities} entities, {len(train)} training triples, {len(valid)} held out")

known = torch.zeros(n_entities, len(RELATIONS), n_entities, dtype=torch.bool)
for part in (train, valid):
    known[part[:, 0], part[:, 1], part[:, 2]] = True

model = ComplEx(n_entities, len(RELATIONS), config["dim"])
model = model.to(getattr(torch, config["dtype"]))
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"], betas=config["betas"])
criterion = nn.CrossEntropyLoss()


@torch.no_grad()
def estimate(split):
    scores = model(split[:, 0], split[:, 1]).float()
    loss = criterion(scores, split[:, 2]).item()
    target = scores.gather(1, split[:, 2:3])
    others = scores.masked_fill(known[split[:, 0], split[:, 1]], float("-inf"))
    rank = 1 + (others > target).sum(1)
    return loss, (rank <= 10).float().mean().item()


t0 = time.time()
for it in range(config["max_iters"] + 1):
    if it % config["eval_interval"] == 0:
        tl, _ = estimate(train[:2000])
        vl, hits = estimate(valid)
        print(f"iter {it}: train loss {tl:.4f}, val loss {vl:.4f}, hits@10 {hits:.3f}, {time.time() - t0:.1f}s", flush=True)
    batch = train[torch.randint(0, len(train), (config["batch_size"],))]
    scores = model(batch[:, 0], batch[:, 1]).float()
    loss = criterion(scores, batch[:, 2])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
