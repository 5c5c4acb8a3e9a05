import argparse
import random
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--dim", type=int, default=48)
ap.add_argument("--window", type=int, default=4)
ap.add_argument("--negatives", type=int, default=6)
ap.add_argument("--steps", type=int, default=400)
ap.add_argument("--batch", type=int, default=1024)
ap.add_argument("--lr", type=float, default=0.01)
ap.add_argument("--subsample", type=float, default=2e-3)
args = ap.parse_args()

random.seed(8)
torch.manual_seed(8)

TOPICS = {
    "animals": "dog cat horse cow goat sheep pig hen duck fox wolf bear".split(),
    "food": "bread cheese rice soup apple pear plum salt pepper butter honey cake".split(),
    "ships": "sail mast keel anchor harbour wave tide rope captain deck crew hull".split(),
    "music": "song violin drum flute chord melody tempo singer choir piano tune note".split(),
    "tools": "hammer saw nail drill wrench chisel plane file vice clamp bolt screw".split(),
    "weather": "rain snow wind storm cloud fog sun frost hail thunder breeze heat".split(),
}
FILLER = "the a of and to in is was with for on at".split()


def corpus(n_sentences=9000):
    names = list(TOPICS)
    for _ in range(n_sentences):
        topic = random.choice(names)
        sent = []
        for _ in range(random.randint(6, 14)):
            r = random.random()
            if r < 0.40:
                sent.append(random.choice(FILLER))
            elif r < 0.95:
                sent.append(random.choice(TOPICS[topic]))
            else:
                sent.append(random.choice(TOPICS[random.choice(names)]))
        yield sent


sentences = list(corpus())
counts = Counter(w for s in sentences for w in s)
vocab = [w for w, _ in counts.most_common()]
index = {w: k for k, w in enumerate(vocab)}
total = sum(counts.values())
freq = torch.tensor([counts[w] / total for w in vocab])
keep = ((args.subsample / freq).sqrt() + args.subsample / freq).clamp_max(1.0).tolist()
noise = freq ** 0.75
noise = noise / noise.sum()


def pairs():
    out = []
    for s in sentences:
        ids = [index[w] for w in s]
        ids = [i for i in ids if random.random() < keep[i]]
        for pos, c in enumerate(ids):
            r = random.randint(1, args.window)
            for q in range(max(0, pos - r), min(len(ids), pos + r + 1)):
                if q != pos:
                    out.append((c, ids[q]))
    return torch.tensor(out)


class SkipGram(nn.Module):
    def __init__(self, v, d):
        super().__init__()
        self.centre = nn.Embedding(v, d)
        self.context = nn.Embedding(v, d)
        nn.init.uniform_(self.centre.weight, -0.5 / d, 0.5 / d)
        nn.init.zeros_(self.context.weight)

    def forward(self, c, pos, neg):
        h = self.centre(c)
        s_pos = (h * self.context(pos)).sum(-1)
        s_neg = torch.einsum("bd,bkd->bk", h, self.context(neg))
        return -(F.logsigmoid(s_pos) + F.logsigmoid(-s_neg).sum(-1)).mean()


@torch.no_grad()
def purity(emb, k=5):
    words = [(w, t) for t, ws in TOPICS.items() for w in ws]
    e = F.normalize(emb[[index[w] for w, _ in words]], dim=-1)
    sim = e @ e.T
    sim.fill_diagonal_(-2)
    nn_ = sim.topk(k, -1).indices
    lab = torch.tensor([list(TOPICS).index(t) for _, t in words])
    return (lab[nn_] == lab[:, None]).float().mean().item()


model = SkipGram(len(vocab), args.dim)
opt = torch.optim.Adam(model.parameters(), lr=args.lr)
sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=args.steps)
print(f"{len(vocab)} words, {total} tokens; neighbour purity at start {purity(model.centre.weight):.3f}")
step, avg = 0, None
while step < args.steps:
    data = pairs()
    data = data[torch.randperm(len(data))]
    for b in range(0, len(data) - args.batch + 1, args.batch):
        c, o = data[b:b + args.batch].unbind(1)
        neg = torch.multinomial(noise, args.batch * args.negatives, replacement=True).view(args.batch, -1)
        loss = model(c, o, neg)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        avg = loss.item() if avg is None else 0.97 * avg + 0.03 * loss.item()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step:4d} loss {loss.item():.4f} avg {avg:.4f} purity {purity(model.centre.weight):.3f}")
        step += 1
        if step == args.steps:
            break

e = F.normalize(model.centre.weight.detach(), dim=-1)
for w in ("horse", "anchor", "flute"):
    near = (e @ e[index[w]]).topk(6).indices.tolist()[1:]
    print(w, "->", " ".join(vocab[i] for i in near))
