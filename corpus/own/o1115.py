import torch
import torch.nn as nn
import torch.nn.functional as F


def planted_partition(n=600, classes=5, feat=100, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    same = y[:, None] == y[None, :]
    prob = torch.where(same, torch.tensor(0.045), torch.tensor(0.003))
    upper = torch.triu(torch.rand(n, n, generator=g) < prob, 1)
    adj = (upper | upper.T).float()
    topic = torch.rand(classes, feat, generator=g) < 0.15
    rate = torch.where(topic[y], torch.tensor(0.16), torch.tensor(0.04))
    x = (torch.rand(n, feat, generator=g) < rate).float()
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    return x, adj, y, g


def normalise(adj):
    a = adj + torch.eye(len(adj))
    d = a.sum(1).rsqrt()
    return (d[:, None] * a * d[None, :]).to_sparse()


class GraphConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_in, d_out))
        self.bias = nn.Parameter(torch.zeros(d_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, a):
        return torch.sparse.mm(a, x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, d_in, hidden, classes, p=0.6):
        super().__init__()
        self.c1 = GraphConv(d_in, hidden)
        self.c2 = GraphConv(hidden, classes)
        self.p = p

    def forward(self, x, a):
        x = F.dropout(x, self.p, self.training)
        h = F.relu(self.c1(x, a))
        h = F.dropout(h, self.p, self.training)
        return self.c2(h, a)


def main():
    torch.manual_seed(4)
    x, adj, y, g = planted_partition()
    a = normalise(adj)
    perm = torch.randperm(len(y), generator=g)
    train_idx = torch.cat([perm[y[perm] == c][:8] for c in range(5)])
    rest = perm[~torch.isin(perm, train_idx)]
    val_idx, test_idx = rest[:150], rest[150:]
    model = GCN(x.shape[1], 16, 5)
    optimizer = torch.optim.Adam(
        [{"params": model.c1.parameters(), "weight_decay": 5e-3},
         {"params": model.c2.parameters(), "weight_decay": 0.0}], lr=0.01)
    best, kept = 0.0, 0.0
    for epoch in range(1, 301):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, a)[train_idx], y[train_idx])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            pred = model(x, a).argmax(1)
        val = (pred[val_idx] == y[val_idx]).float().mean().item()
        test = (pred[test_idx] == y[test_idx]).float().mean().item()
        if val > best:
            best, kept = val, test
        if epoch % 20 == 0 or epoch == 1:
            print(f"epoch {epoch:3d} loss {loss.item():.4f} val {val:.3f} test {test:.3f}", flush=True)
    print(f"best val {best:.3f} with test {kept:.3f}")


if __name__ == "__main__":
    main()
