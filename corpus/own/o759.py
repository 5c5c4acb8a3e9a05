import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--maxlen", type=int, default=24)
parser.add_argument("--hidden", type=int, default=48)
parser.add_argument("--blocks", type=int, default=2)
parser.add_argument("--heads", type=int, default=2)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--bs", type=int, default=64)
parser.add_argument("--lr", type=float, default=2e-3)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(5)
rng = np.random.default_rng(5)
N_ITEMS, N_GENRES, N_USERS = 200, 20, 2000


def simulate_user():
    n = rng.integers(10, args.maxlen + 3)
    taste = rng.choice(N_GENRES, 3, replace=False)
    seq, g = [], rng.choice(taste)
    slot = {k: rng.integers(0, 10) for k in taste}
    for _ in range(n):
        if rng.random() < 0.3:
            g = taste[(list(taste).index(g) + 1) % 3]
        slot[g] = (slot[g] + 3) % 10 if rng.random() < 0.9 else rng.integers(0, 10)
        seq.append(1 + g * 10 + slot[g])
    return seq


sessions = [simulate_user() for _ in range(N_USERS)]


def pad_left(s):
    s = s[-args.maxlen:]
    return [0] * (args.maxlen - len(s)) + list(s)


train_in = torch.tensor([pad_left(s[:-2]) for s in sessions])
train_out = torch.tensor([pad_left(s[1:-1]) for s in sessions])
test_in = torch.tensor([pad_left(s[:-1]) for s in sessions])
test_out = torch.tensor([s[-1] for s in sessions])


class PointWiseFeedForward(nn.Module):
    def __init__(self, h, p):
        super().__init__()
        self.conv1 = nn.Conv1d(h, h, kernel_size=1)
        self.conv2 = nn.Conv1d(h, h, kernel_size=1)
        self.drop1, self.drop2 = nn.Dropout(p), nn.Dropout(p)

    def forward(self, x):
        y = self.drop2(self.conv2(F.relu(self.drop1(self.conv1(x.transpose(-1, -2))))))
        return x + y.transpose(-1, -2)


class SASRec(nn.Module):
    def __init__(self, h, p=0.1):
        super().__init__()
        self.item_emb = nn.Embedding(N_ITEMS + 1, h, padding_idx=0)
        self.pos_emb = nn.Embedding(args.maxlen, h)
        self.drop = nn.Dropout(p)
        self.ln1 = nn.ModuleList(nn.LayerNorm(h) for _ in range(args.blocks))
        self.ln2 = nn.ModuleList(nn.LayerNorm(h) for _ in range(args.blocks))
        self.attn = nn.ModuleList(nn.MultiheadAttention(h, args.heads, p, batch_first=True)
                                  for _ in range(args.blocks))
        self.ffn = nn.ModuleList(PointWiseFeedForward(h, p) for _ in range(args.blocks))
        self.last = nn.LayerNorm(h)
        nn.init.normal_(self.item_emb.weight, std=0.1)
        nn.init.normal_(self.pos_emb.weight, std=0.1)

    def encode(self, seq):
        L = seq.size(1)
        x = self.item_emb(seq) * self.item_emb.embedding_dim ** 0.5
        x = self.drop(x + self.pos_emb(torch.arange(L)))
        keep = (seq != 0).unsqueeze(-1)
        x = x * keep
        attn_mask = ~torch.tril(torch.ones(L, L, dtype=torch.bool), diagonal=1)
        for ln1, mha, ln2, ffn in zip(self.ln1, self.attn, self.ln2, self.ffn):
            q = ln1(x)
            a, _ = mha(q, x, x, attn_mask=attn_mask, need_weights=False)
            x = ffn(ln2(q + a)) * keep
        return self.last(x)

    def forward(self, seq, pos, neg):
        h = self.encode(seq)
        return (h * self.item_emb(pos)).sum(-1), (h.unsqueeze(2) * self.item_emb(neg)).sum(-1)


@torch.no_grad()
def evaluate(model, k=10):
    model.eval()
    hr = ndcg = 0.0
    for i in range(0, 1000, 250):
        h = model.encode(test_in[i:i + 250])[:, -1]
        score = h @ model.item_emb.weight.t()
        score[:, 0] = -1e9
        gold = score.gather(1, test_out[i:i + 250, None])
        rank = (score > gold).sum(1)
        hit = rank < k
        hr += hit.float().sum().item()
        ndcg += (hit / torch.log2(rank.float() + 2)).sum().item()
    model.train()
    return hr / 1000, ndcg / 1000


model = SASRec(args.hidden)
opt = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
bce = nn.BCEWithLogitsLoss()
print("untrained HR@10 %.3f NDCG@10 %.3f" % evaluate(model))
for epoch in range(args.epochs):
    perm, losses = torch.randperm(N_USERS), []
    for i in range(0, N_USERS, args.bs):
        b = perm[i:i + args.bs]
        seq, pos = train_in[b], train_out[b]
        neg = torch.randint(1, N_ITEMS + 1, pos.shape + (4,))
        p, n = model(seq, pos, neg)
        m = pos != 0
        loss = bce(p[m], torch.ones_like(p[m])) + bce(n[m], torch.zeros_like(n[m]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(f"epoch {epoch:2d} bce {np.mean(losses):.4f} (first batch {losses[0]:.4f})  "
          "HR@10 %.3f NDCG@10 %.3f" % evaluate(model))
