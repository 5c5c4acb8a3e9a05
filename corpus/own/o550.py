import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(404)

N, CLASSES, FEATS = 900, 5, 120
TRAIN_PER_CLASS, N_VAL, N_TEST = 20, 200, 400


def citation_graph():
    y = torch.randint(CLASSES, (N,))
    same = y[:, None] == y[None, :]
    prob = torch.where(same, torch.tensor(0.02), torch.tensor(0.0015))
    upper = torch.rand(N, N).lt(prob).triu(1)
    src, dst = upper.nonzero(as_tuple=True)
    edges = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    loops = torch.arange(N).repeat(2, 1)
    edges = torch.cat([edges, loops], 1)
    topic = torch.full((CLASSES, FEATS), 0.02)
    block = FEATS // CLASSES
    for c in range(CLASSES):
        topic[c, c * block:(c + 1) * block] = 0.07
    x = torch.bernoulli(topic[y])
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    return x, y, edges


def edge_softmax(score, dst, n):
    index = dst[:, None].expand_as(score)
    peak = torch.full((n, score.size(1)), float("-inf")).scatter_reduce(0, index, score.detach(), "amax")
    e = (score - peak[dst]).exp()
    total = torch.zeros(n, score.size(1)).index_add(0, dst, e)
    return e / total[dst]


class GATLayer(nn.Module):
    def __init__(self, fin, fout, heads, concat, dropout):
        super().__init__()
        self.h, self.f, self.concat = heads, fout, concat
        self.lin = nn.Linear(fin, heads * fout, bias=False)
        self.a_src = nn.Parameter(torch.empty(heads, fout))
        self.a_dst = nn.Parameter(torch.empty(heads, fout))
        self.bias = nn.Parameter(torch.zeros(heads * fout if concat else fout))
        self.drop = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.lin.weight, gain=1.414)
        nn.init.xavier_uniform_(self.a_src, gain=1.414)
        nn.init.xavier_uniform_(self.a_dst, gain=1.414)

    def forward(self, x, edges):
        src, dst = edges
        z = self.lin(self.drop(x)).view(-1, self.h, self.f)
        score = (z * self.a_src).sum(-1)[src] + (z * self.a_dst).sum(-1)[dst]
        alpha = self.drop(edge_softmax(F.leaky_relu(score, 0.2), dst, len(x)))
        out = torch.zeros_like(z).index_add(0, dst, z[src] * alpha.unsqueeze(-1))
        out = out.flatten(1) if self.concat else out.mean(1)
        return out + self.bias


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = GATLayer(FEATS, 8, heads=8, concat=True, dropout=0.5)
        self.l2 = GATLayer(64, CLASSES, heads=1, concat=False, dropout=0.5)

    def forward(self, x, edges):
        return self.l2(F.elu(self.l1(x, edges)), edges)


x, y, edges = citation_graph()
order = torch.randperm(N)
train_idx = torch.cat([order[y[order] == c][:TRAIN_PER_CLASS] for c in range(CLASSES)])
rest = order[~torch.isin(order, train_idx)]
val_idx, test_idx = rest[:N_VAL], rest[N_VAL: N_VAL + N_TEST]
print(f"{N} nodes, {(edges.size(1) - N) // 2} undirected edges, {len(train_idx)} labelled")

model = GAT()
opt = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)


@torch.no_grad()
def measure():
    model.eval()
    out = model(x, edges)
    model.train()
    acc = lambda i: (out[i].argmax(1) == y[i]).float().mean().item()
    return F.cross_entropy(out[val_idx], y[val_idx]).item(), acc(val_idx), acc(test_idx)


EPOCHS = 300
best = (float("inf"), 0.0)
for epoch in range(EPOCHS):
    out = model(x, edges)
    loss = F.cross_entropy(out[train_idx], y[train_idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if epoch % 5 == 4 or epoch == 0:
        vl, va, ta = measure()
        if vl < best[0]:
            best = (vl, ta)
        if epoch == 0 or epoch % 50 == 49:
            print(f"epoch {epoch:3d} loss {loss.item():.4f} | val loss {vl:.4f} acc {va:.3f}")
print(f"test accuracy at the best validation loss: {best[1]:.3f}")
