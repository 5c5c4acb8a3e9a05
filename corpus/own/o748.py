import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(598)
P, FRAC, D = 31, 0.6, 96
a, b = torch.meshgrid(torch.arange(P), torch.arange(P), indexing="ij")
pairs, y = torch.stack([a.flatten(), b.flatten()], 1), ((a + b) % P).flatten()
order = torch.randperm(len(y))
cut = int(FRAC * len(y))
tr, te = order[:cut], order[cut:]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(P, D)
        self.fc = nn.Linear(D, 256)
        self.out = nn.Linear(256, P)

    def forward(self, x):
        return self.out(F.relu(self.fc(self.emb(x).sum(1))))


net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1.0, betas=(0.9, 0.98))
for step in range(1201):
    loss = F.cross_entropy(net(pairs[tr]), y[tr])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 150 == 0:
        with torch.no_grad():
            out = net(pairs[te])
            acc = (out.argmax(-1) == y[te]).float().mean()
        print(f"step {step} train {loss.item():.4f} held-out {F.cross_entropy(out, y[te]).item():.4f} acc {acc.item():.3f}")
