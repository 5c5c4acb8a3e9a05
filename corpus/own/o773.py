import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(55)
torch.set_num_threads(1)
V, T = 20, 24


def grammar(seed):
    g = torch.Generator().manual_seed(seed)
    return (3.0 * torch.randn(V, V, generator=g)).softmax(1)


def text(P, n):
    x = torch.empty(n, T + 1, dtype=torch.long)
    x[:, 0] = torch.randint(0, V, (n,))
    for t in range(1, T + 1):
        x[:, t] = torch.multinomial(P[x[:, t - 1]], 1).squeeze(1)
    return x


class LM(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.f1, self.f2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, V)

    def forward(self, x):
        e = self.emb(x)
        h = e + 0.3 * F.pad(e, (0, 0, 1, 0))[:, :-1]
        h = h + self.f2(F.gelu(self.f1(h)))
        return self.head(self.norm(h))


def run(model, P, steps, lr, tag, autocast):
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    for i in range(steps):
        x = text(P, 24)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = model(x[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 40 == 0 or i == steps - 1:
            print(f"[{tag}] step {i:3d} loss {loss.item():.4f}")


@torch.no_grad()
def nll(model, P):
    x = text(P, 200)
    return F.cross_entropy(model(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten()).item()


P, Q = grammar(1), grammar(2)
Q = 0.5 * P + 0.5 * Q
floor = -(Q * Q.log()).sum(1).mean().item()
model = LM()
run(model, P, 150, 3e-3, "base", True)
print(f"base model: nll on P {nll(model, P):.4f}, on Q {nll(model, Q):.4f} (entropy of Q about {floor:.3f})")
model = model.to(torch.bfloat16)
run(model, Q, 280, 1e-4, "tune", True)
print(f"tuned model: nll on Q {nll(model, Q):.4f}")
