import argparse
import numpy as np
import torch
import torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--rows", type=int, default=6000)
p.add_argument("--dim", type=int, default=48)
p.add_argument("--layers", type=int, default=2)
p.add_argument("--epochs", type=int, default=6)
p.add_argument("--bs", type=int, default=80)
p.add_argument("--lr", type=float, default=2e-3)
args = p.parse_args()

np.random.seed(7)
torch.manual_seed(7)
CAT = [6, 6, 5, 4, 4, 3]
table = np.stack([np.random.randint(0, c, args.rows) for c in CAT], 1)
num = np.random.randn(args.rows, 3).astype("float32")
score = np.where(table[:, 0] == table[:, 1], 2.2, -0.6)
score += 1.4 * np.where(table[:, 3] == table[:, 4], 1, -1) * num[:, 0]
score += 0.8 * num[:, 1] * (table[:, 2] - 2)
target = (score + 0.2 * np.random.randn(args.rows) > np.median(score)).astype("float32")
offsets = np.cumsum([0] + CAT[:-1])
X = torch.tensor(table + offsets)
Z = torch.tensor(num)
Y = torch.tensor(target)
cut = int(args.rows * 0.8)


class FTTransformer(nn.Module):
    def __init__(self, n_tokens, n_num, d, layers):
        super().__init__()
        self.cat = nn.Embedding(n_tokens, d)
        self.w = nn.Parameter(torch.randn(n_num, d) * d ** -0.5)
        self.b = nn.Parameter(torch.randn(n_num, d) * d ** -0.5)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        enc = nn.TransformerEncoderLayer(d_model=d, nhead=4, dim_feedforward=2 * d, dropout=0.05, activation="gelu", norm_first=True, batch_first=True)
        self.transformer_encoder = nn.TransformerEncoder(enc, layers, enable_nested_tensor=False)
        self.fc = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, cats, nums):
        tok = torch.cat([self.cls.expand(len(cats), -1, -1), self.cat(cats), nums[..., None] * self.w + self.b], dim=1)
        out = self.transformer_encoder(tok)
        return self.fc(out.mean(1)).squeeze(-1)


net = FTTransformer(sum(CAT), 3, args.dim, args.layers)
bce = nn.BCEWithLogitsLoss()
opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-5)
for ep in range(args.epochs):
    net.train()
    perm = torch.randperm(cut)
    tot = 0.0
    for k in range(0, cut, args.bs):
        ix = perm[k:k + args.bs]
        opt.zero_grad()
        l = bce(net(X[ix], Z[ix]), Y[ix])
        l.backward()
        opt.step()
        tot += l.item() * len(ix)
    print("epoch %d  train logloss %.4f" % (ep, tot / cut))

net.eval()
with torch.no_grad():
    lg = torch.cat([net(X[k:k + 200], Z[k:k + 200]) for k in range(cut, args.rows, 200)])
yv = Y[cut:]
pos, neg = lg[yv == 1], lg[yv == 0]
auc = (pos[:, None] > neg[None]).float().mean().item()
print("valid logloss %.4f auc %.4f" % (bce(lg, yv).item(), auc))
