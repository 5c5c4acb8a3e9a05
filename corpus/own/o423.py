import math
import torch
import torch.nn as nn
import torch.nn.functional as F

V, CTX = 16, 20


class Source:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.P = torch.softmax(1.0 * torch.randn(V, V, generator=self.g), 1)

    def entropy_rate(self):
        pi = torch.ones(V) / V
        for _ in range(200):
            pi = pi @ self.P
        return -(pi[:, None] * self.P * self.P.log()).sum().item()

    def batch(self, n):
        x = torch.randint(0, V, (n, 1), generator=self.g)
        for _ in range(CTX):
            x = torch.cat([x, torch.multinomial(self.P[x[:, -1]], 1, generator=self.g)], 1)
        return x[:, :-1], x[:, 1:]


class GRUPredictor(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.cell = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, V)

    def forward(self, x):
        return self.out(self.cell(self.emb(x))[0])


def main():
    torch.manual_seed(9)
    src = Source(9)
    floor = src.entropy_rate()
    print(f"uniform {math.log(V):.4f}  entropy rate of the source {floor:.4f}")
    net = GRUPredictor()
    opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    avg = math.log(V)
    for step in range(420):
        x, y = src.batch(64)
        loss = F.cross_entropy(net(x).transpose(1, 2), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        avg = 0.97 * avg + 0.03 * loss.item()
        if step % 20 == 0 or step == 419:
            print(f"step {step} loss {loss.item():.4f} smoothed {avg:.4f}", flush=True)
    with torch.no_grad():
        x, y = src.batch(1500)
        held = F.cross_entropy(net(x).transpose(1, 2), y).item()
    print(f"held-out loss {held:.4f}, excess over the floor {held - floor:.4f}")


if __name__ == "__main__":
    main()
