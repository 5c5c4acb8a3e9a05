import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--nodes", type=int, default=480)
ap.add_argument("--classes", type=int, default=6)
ap.add_argument("--layers", type=int, default=12)
ap.add_argument("--hidden", type=int, default=48)
ap.add_argument("--epochs", type=int, default=160)
ap.add_argument("--lr", type=float, default=5e-3)
ap.add_argument("--seed", type=int, default=4)
args = ap.parse_args()

torch.manual_seed(args.seed)


def block_graph(n, k, p_in=0.06, p_out=0.012, feat=32):
    y = torch.arange(n) % k
    same = y[:, None] == y[None, :]
    prob = torch.where(same, torch.tensor(p_in), torch.tensor(p_out))
    upper = torch.bernoulli(prob).triu(1)
    adj = upper + upper.T
    centers = torch.randn(k, feat)
    x = centers[y] * 0.6 + torch.randn(n, feat)
    return adj, x, y


def sym_norm(adj):
    a = adj + torch.eye(len(adj))
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d[None, :]


class GraphConv(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.neigh = nn.Linear(d, d)

    def forward(self, h, A):
        return F.relu(self.neigh(A @ h))


class DeepGCN(nn.Module):
    def __init__(self, d_in, d, depth, k):
        super().__init__()
        self.lift = nn.Linear(d_in, d)
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(depth)])
        self.convs = nn.ModuleList([GraphConv(d) for _ in range(depth)])
        self.read = nn.Linear(d, k)
        self.p = 0.1

    def forward(self, x, A):
        h = self.lift(x)
        for norm, conv in zip(self.norms, self.convs):
            h = F.dropout(conv(norm(h), A), self.p, self.training)
        return self.read(h)


adj, x, y = block_graph(args.nodes, args.classes)
A = sym_norm(adj)
perm = torch.randperm(args.nodes)
tr, va = perm[: args.nodes // 2], perm[args.nodes // 2:]

net = DeepGCN(x.size(1), args.hidden, args.layers, args.classes)
opt = torch.optim.Adam(net.parameters(), lr=args.lr, weight_decay=5e-4)


def accuracy(idx):
    net.eval()
    with torch.no_grad():
        hit = (net(x, A)[idx].argmax(1) == y[idx]).float().mean().item()
    net.train()
    return hit


for epoch in range(1, args.epochs + 1):
    loss = F.cross_entropy(net(x, A)[tr], y[tr])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if epoch % 10 == 0 or epoch == 1:
        print(f"Epoch {epoch:03d}  loss {loss.item():.4f}  train {accuracy(tr):.3f}", flush=True)
print(f"held-out accuracy {accuracy(va):.4f}")
