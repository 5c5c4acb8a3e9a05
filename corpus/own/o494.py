import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)


def sbm(n=600, k=5, p_in=0.03, p_out=0.003, d=40):
    y = torch.randint(0, k, (n,))
    same = y[:, None] == y[None]
    prob = torch.where(same, p_in, p_out)
    a = torch.triu(torch.rand(n, n) < prob, 1)
    a = a | a.T
    a.fill_diagonal_(True)
    centers = torch.randn(k, d) * 0.35
    x = centers[y] + torch.randn(n, d)
    return x, y, a.nonzero().T


class GATLayer(nn.Module):
    def __init__(self, i, o, heads, concat=True):
        super().__init__()
        self.h, self.o, self.concat = heads, o, concat
        self.w = nn.Linear(i, heads * o, bias=False)
        self.src = nn.Parameter(torch.empty(heads, o))
        self.dst = nn.Parameter(torch.empty(heads, o))
        for p in (self.w.weight, self.src, self.dst):
            nn.init.xavier_uniform_(p)
        self.b = nn.Parameter(torch.zeros(heads * o if concat else o))

    def forward(self, x, edges):
        n = x.size(0)
        z = self.w(x).view(n, self.h, self.o)
        s, d = edges
        e = F.leaky_relu((z * self.src).sum(-1)[s] + (z * self.dst).sum(-1)[d], 0.2)
        e = e - e.max()
        e = e.exp()
        den = torch.zeros(n, self.h).index_add_(0, d, e)
        alpha = F.dropout(e / den[d], 0.3, self.training)
        out = torch.zeros(n, self.h, self.o).index_add_(0, d, alpha[..., None] * z[s])
        out = out.flatten(1) if self.concat else out.mean(1)
        return out + self.b


class GAT(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.l1 = GATLayer(d, 8, 4)
        self.l2 = GATLayer(32, k, 1, concat=False)

    def forward(self, x, e):
        x = F.dropout(x, 0.4, self.training)
        x = F.elu(self.l1(x, e))
        x = F.dropout(x, 0.4, self.training)
        return self.l2(x, e)


x, y, edges = sbm()
perm = torch.randperm(len(y))
masks = {n: torch.zeros(len(y), dtype=torch.bool) for n in ("train", "val", "test")}
masks["train"][perm[:60]] = True
masks["val"][perm[60:260]] = True
masks["test"][perm[260:]] = True

net = GAT(x.size(1), 5)
opt = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=5e-4)
best_val = best_test = 0
for epoch in range(200):
    net.train()
    opt.zero_grad()
    out = net(x, edges)
    loss = F.cross_entropy(out[masks["train"]], y[masks["train"]])
    loss.backward()
    opt.step()
    net.eval()
    with torch.no_grad():
        out = net(x, edges)
        acc = {k: (out[m].argmax(1) == y[m]).float().mean().item() for k, m in masks.items()}
    if acc["val"] > best_val:
        best_val, best_test = acc["val"], acc["test"]
    if epoch % 10 == 0 or epoch == 199:
        print(f"epoch {epoch:3d} loss {loss.item():.4f} " + " ".join(f"{k} {v:.3f}" for k, v in acc.items()))
print("test at best val", best_test)
