import numpy as np
import torch
import torch.nn as nn

SEED = 2024
rng = np.random.default_rng(SEED)
torch.manual_seed(SEED)


def load_churn(n=7000):
    tenure = rng.gamma(2.0, 14.0, n)
    monthly = rng.normal(60, 22, n).clip(15, 130)
    tickets = rng.poisson(1.3, n)
    age = rng.integers(18, 80, n)
    noise = rng.normal(size=(n, 2))
    contract = rng.integers(0, 3, n)
    region = rng.integers(0, 8, n)
    pay = rng.integers(0, 4, n)
    z = (-0.05 * tenure + 0.035 * (monthly - 60) + 0.9 * (tickets - 1.3) + np.array([1.6, 0.0, -1.7])[contract]
         + 1.4 * ((pay == 2) & (monthly > 65)) - 1.2 * ((region % 3 == 0) & (age > 50)) + 0.8)
    y = (rng.random(n) < 1 / (1 + np.exp(-1.6 * z))).astype(np.float32)
    num = np.column_stack([tenure, monthly, tickets, age, noise]).astype(np.float32)
    cat = np.column_stack([contract, region, pay]).astype(np.int64)
    return num, cat, y


def auc(y, s):
    order = np.argsort(s)
    r = np.empty(len(s))
    r[order] = np.arange(1, len(s) + 1)
    n1 = y.sum()
    return (r[y == 1].sum() - n1 * (n1 + 1) / 2) / (n1 * (len(y) - n1))


X_num, X_cat, y = load_churn()
perm = rng.permutation(len(y))
X_num, X_cat, y = (a[perm] for a in (X_num, X_cat, y))
n_tr = int(0.8 * len(y))
mu, sd = X_num[:n_tr].mean(0), X_num[:n_tr].std(0)
X_num = (X_num - mu) / sd
T = torch.from_numpy
tr = [T(a[:n_tr]) for a in (X_num, X_cat, y)]
va = [T(a[n_tr:]) for a in (X_num, X_cat, y)]


class FTTransformer(nn.Module):
    def __init__(self, n_num, cards, d=48, heads=4, depth=2, p=0.1):
        super().__init__()
        self.w = nn.Parameter(torch.randn(n_num, d) * d ** -0.5)
        self.b = nn.Parameter(torch.zeros(n_num, d))
        self.emb = nn.ModuleList([nn.Embedding(c, d) for c in cards])
        for e in self.emb:
            nn.init.normal_(e.weight, std=d ** -0.5)
        self.cls = nn.Parameter(torch.randn(1, 1, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=p, activation="gelu", batch_first=True,
                                           norm_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, xn, xc):
        tok = [xn.unsqueeze(-1) * self.w + self.b]
        tok += [e(xc[:, i:i + 1]) for i, e in enumerate(self.emb)]
        h = torch.cat([self.cls.expand(len(xn), -1, -1)] + tok, 1)
        return self.head(self.enc(h)[:, 0]).squeeze(-1)


model = FTTransformer(X_num.shape[1], [3, 8, 4])
loss_fn = nn.BCEWithLogitsLoss()
EPOCHS, BS = 8, 128
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
sch = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=EPOCHS * (n_tr // BS))

for ep in range(EPOCHS):
    model.train()
    idx = torch.randperm(n_tr)
    tot = 0
    for i in range(n_tr // BS):
        j = idx[i * BS:(i + 1) * BS]
        loss = loss_fn(model(tr[0][j], tr[1][j]), tr[2][j])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sch.step()
        tot += loss.item()
    model.eval()
    with torch.no_grad():
        s = model(va[0], va[1])
        vl = loss_fn(s, va[2]).item()
    print(f"ep {ep}: train {tot / (n_tr // BS):.4f}  valid {vl:.4f}  auc {auc(va[2].numpy(), s.numpy()):.4f}")
