import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)

N, CLASSES, WORDS, DEGREE = 420, 5, 120, 6

label = torch.arange(N) * CLASSES // N
adj = torch.eye(N, dtype=torch.bool)
for i in range(N):
    same = (label == label[i]).nonzero().flatten()
    for _ in range(DEGREE // 2):
        pool = same if torch.rand(()) < 0.75 else torch.arange(N)
        j = pool[torch.randint(len(pool), ())]
        adj[i, j] = adj[j, i] = True
topic = torch.rand(CLASSES, WORDS) ** 3 * 0.12
x = (torch.rand(N, WORDS) < topic[label]).float()
x = x / x.sum(1, keepdim=True).clamp(min=1)

train_idx = torch.cat([(label == c).nonzero().flatten()[:20] for c in range(CLASSES)])
rest = torch.ones(N, dtype=torch.bool)
rest[train_idx] = False
rest = rest.nonzero().flatten()
rest = rest[torch.randperm(len(rest))]
val_idx, test_idx = rest[:120], rest[120:]


class GraphAttention(nn.Module):
    def __init__(self, i, o, heads):
        super().__init__()
        self.heads = heads
        self.lin = nn.Linear(i, heads * o, bias=False)
        self.src = nn.Parameter(torch.empty(heads, o))
        self.dst = nn.Parameter(torch.empty(heads, o))
        self.bias = nn.Parameter(torch.zeros(heads * o))
        for w in (self.lin.weight, self.src, self.dst):
            nn.init.xavier_uniform_(w)

    def forward(self, x, adj, p):
        h = self.lin(F.dropout(x, p, self.training)).view(len(x), self.heads, -1)
        a, b = (h * self.src).sum(-1), (h * self.dst).sum(-1)
        e = F.leaky_relu(b.T[:, :, None] + a.T[:, None, :], 0.2)
        w = e.masked_fill(~adj, float("-inf")).softmax(-1)
        w = F.dropout(w, p, self.training)
        return torch.einsum("hij,jho->iho", w, h).flatten(1) + self.bias


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = GraphAttention(WORDS, 8, 6)
        self.two = GraphAttention(48, CLASSES, 1)

    def forward(self, x, adj):
        return self.two(F.elu(self.one(x, adj, 0.5)), adj, 0.5)


model = GAT()
opt = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
best, state, patience = 0.0, None, 0
for epoch in range(1, 401):
    model.train()
    loss = F.cross_entropy(model(x, adj)[train_idx], label[train_idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if epoch % 10 == 0:
        model.eval()
        with torch.no_grad():
            pred = model(x, adj).argmax(1)
        val = (pred[val_idx] == label[val_idx]).float().mean().item()
        print(f"epoch {epoch} loss {loss.item():.4f} val acc {val:.3f}", flush=True)
        if val > best:
            best, patience = val, 0
            state = {k: v.clone() for k, v in model.state_dict().items()}
        else:
            patience += 1
        if patience == 20:
            break
model.load_state_dict(state)
model.eval()
with torch.no_grad():
    pred = model(x, adj).argmax(1)
print(f"test acc {(pred[test_idx] == label[test_idx]).float().mean():.3f}")
