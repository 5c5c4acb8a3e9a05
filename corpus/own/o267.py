import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(44)
NODES, FEATS, CLASSES = 14, 8, 4
HIDDEN, DEPTH = 64, 5
INIT_STD = 0.005


class GraphLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.value = nn.Linear(d, d)
        self.score = nn.Linear(2 * d, 1)
        self.out = nn.Linear(d, d)

    def forward(self, h, adj):
        n = h.size(1)
        pair = torch.cat([h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1)], -1)
        s = F.leaky_relu(self.score(pair).squeeze(-1), 0.2).masked_fill(~adj, -1e9)
        return F.elu(self.out(s.softmax(-1) @ self.value(h)) + self.value(h))


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(FEATS, HIDDEN)
        self.layers = nn.ModuleList(GraphLayer(HIDDEN) for _ in range(DEPTH))
        self.read = nn.Linear(HIDDEN, CLASSES)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=INIT_STD)
            else:
                nn.init.zeros_(p)

    def forward(self, x, adj):
        h = F.elu(self.inp(x))
        for layer in self.layers:
            h = layer(h, adj)
        return self.read(h.mean(1))


def graphs(n, g):
    y = torch.randint(CLASSES, (n,), generator=g)
    density = 0.12 + 0.2 * (y % 2).float()
    adj = torch.rand(n, NODES, NODES, generator=g) < density[:, None, None]
    adj = adj | adj.transpose(1, 2) | torch.eye(NODES, dtype=torch.bool)
    x = torch.randn(n, NODES, FEATS, generator=g)
    x[:, :, 0] = adj.float().sum(-1) / 4
    x[:, :, 1:4] += 0.5 * (y // 2).float()[:, None, None]
    return x, adj, y


g = torch.Generator().manual_seed(440)
model = GraphNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
avg = None
for it in range(160):
    x, adj, y = graphs(32, g)
    logits = model(x, adj)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimizer.step()
    avg = loss.item() if avg is None else 0.9 * avg + 0.1 * loss.item()
    if it % 20 == 0 or it == 159:
        acc = (logits.argmax(-1) == y).float().mean().item()
        print(f"it {it} loss {avg:.4f} acc {acc:.2f}")
