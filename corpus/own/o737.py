import argparse
import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--users", type=int, default=400)
ap.add_argument("--items", type=int, default=250)
ap.add_argument("--rank", type=int, default=16)
ap.add_argument("--steps", type=int, default=2100)
ap.add_argument("--lr", type=float, default=3e-3)
ap.add_argument("--batch", type=int, default=512)
args = ap.parse_args()
torch.manual_seed(31)


class Catalogue:
    def __init__(self, a):
        self.u = torch.randn(a.users, 4)
        self.i = torch.randn(a.items, 4)
        self.ub, self.ib = torch.randn(a.users) * 0.4, torch.randn(a.items) * 0.4
        n = 60000
        self.user = torch.randint(0, a.users, (n,))
        self.item = torch.randint(0, a.items, (n,))
        self.hist = torch.randint(0, a.items, (a.users, 8))
        self.r = 3 + 0.5 * (self.u[self.user] * self.i[self.item]).sum(-1) + self.ub[self.user] \
            + self.ib[self.item] + 0.2 * torch.randn(n)
        self.cut = 48000


class Rater(nn.Module):
    def __init__(self, a, mean):
        super().__init__()
        self.user = nn.Embedding(a.users, a.rank)
        self.item = nn.Embedding(a.items, a.rank)
        self.hist = nn.Embedding(a.items, a.rank)
        self.bias = nn.ModuleDict({"user": nn.Embedding(a.users, 1), "item": nn.Embedding(a.items, 1)})
        self.mean = nn.Parameter(torch.tensor(mean))

    def forward(self, u, i, h):
        ue, ie, he = self.user(u).float(), self.item(i).float(), self.hist(h).float()
        w = torch.softmax((he @ ie.unsqueeze(-1)).squeeze(-1) / ie.size(-1) ** 0.5, -1)
        ctx = (w.unsqueeze(-1) * he).sum(1)
        b = self.bias["user"](u).float() + self.bias["item"](i).float()
        return self.mean + b.squeeze(-1) + ((ue + 0.1 * ctx) * ie).mean(-1) * 4


data = Catalogue(args)
model = Rater(args, data.r[:data.cut].mean().item())
opt = torch.optim.Adam(model.parameters(), lr=args.lr)


def rmse():
    with torch.no_grad():
        s = slice(data.cut, None)
        p = model(data.user[s], data.item[s], data.hist[data.user[s]])
        return (p - data.r[s]).pow(2).mean().sqrt().item()


print(f"std of ratings {data.r.std():.3f}, start rmse {rmse():.3f}")
for step in range(1, args.steps + 1):
    j = torch.randint(0, data.cut, (args.batch,))
    pred = model(data.user[j], data.item[j], data.hist[data.user[j]])
    loss = (pred - data.r[j]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 300 == 0:
        print(f"step {step}  mse {loss.item():.4f}  holdout rmse {rmse():.4f}")
