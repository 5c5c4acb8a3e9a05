import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(8)
torch.manual_seed(8)
VOCAB, DIM, SMALL, BIG, STEPS, TEMP = 200, 64, 16, 64, 180, 0.05
CONCEPTS = 80
PAD = 0
q_word = [1 + (i * 7) % (VOCAB - 1) for i in range(CONCEPTS)]
p_word = [1 + (i * 11 + 5) % (VOCAB - 1) for i in range(CONCEPTS)]


def make_doc():
    concepts = random.sample(range(CONCEPTS), 6)
    passage = [p_word[c] for c in concepts] + [random.randrange(1, VOCAB) for _ in range(2)]
    random.shuffle(passage)
    question = [q_word[c] for c in random.sample(concepts, 4)]
    return question, passage


def to_tensor(rows):
    return nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], batch_first=True, padding_value=PAD)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM, padding_idx=PAD)
        self.mix = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.1, batch_first=True, norm_first=True)
        self.out = nn.Linear(DIM, DIM, bias=False)

    def forward(self, ids):
        pad = ids.eq(PAD)
        h = self.mix(self.emb(ids), src_key_padding_mask=pad)
        h = h.masked_fill(pad[..., None], 0.0).sum(1) / (~pad).sum(1, keepdim=True)
        return F.normalize(self.out(h), dim=-1)


def contrastive(q, p):
    sim = q @ p.T / TEMP
    target = torch.arange(len(q))
    return 0.5 * (F.cross_entropy(sim, target) + F.cross_entropy(sim.T, target))


class CachedStep:
    """embed everything once without a graph, take the gradient at the embeddings, then replay chunk by chunk"""

    def __init__(self, tower, chunk):
        self.tower, self.chunk = tower, chunk

    def embed(self, ids):
        states, reps = [], []
        with torch.no_grad():
            for c in ids.split(self.chunk):
                states.append(torch.get_rng_state())
                reps.append(self.tower(c))
        return torch.cat(reps), states

    def replay(self, ids, grad, states):
        for c, g, s in zip(ids.split(self.chunk), grad.split(self.chunk), states):
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(s)
                rep = self.tower(c)
            surrogate = (rep * g).sum()
            surrogate.backward()

    def __call__(self, q_ids, p_ids):
        q, qs = self.embed(q_ids)
        p, ps = self.embed(p_ids)
        q, p = q.detach().requires_grad_(), p.detach().requires_grad_()
        loss = contrastive(q, p)
        gq, gp = torch.autograd.grad(loss, (q, p))
        self.replay(q_ids, gq, qs)
        self.replay(p_ids, gp, ps)
        return loss.detach()


@torch.no_grad()
def recall_at_1(tower, docs):
    tower.eval()
    q, p = tower(to_tensor([d[0] for d in docs])), tower(to_tensor([d[1] for d in docs]))
    hit = ((q @ p.T).argmax(1) == torch.arange(len(docs))).float().mean().item()
    tower.train()
    return hit


tower = Tower()
opt = torch.optim.AdamW(tower.parameters(), lr=4e-3, weight_decay=0.01)
step_fn = CachedStep(tower, SMALL)
held_out = [make_doc() for _ in range(256)]
for step in range(STEPS):
    rows = [make_doc() for _ in range(BIG)]
    opt.zero_grad()
    loss = step_fn(to_tensor([r[0] for r in rows]), to_tensor([r[1] for r in rows]))
    opt.step()
    if step % 10 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.4f}")
    if step % 45 == 44:
        print(f"step {step:3d} recall@1 of 256: {recall_at_1(tower, held_out):.3f}")
