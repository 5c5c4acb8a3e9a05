import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

torch.set_num_threads(1)


class SeqClassifier(nn.Module):
    def __init__(self, n_tokens, n_classes, width=64, depth=2):
        super().__init__()
        self.embed = nn.Embedding(n_tokens, width)
        self.place = nn.Parameter(torch.zeros(32, width))
        self.mixers = nn.ModuleList([nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(depth)])
        self.ups = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(depth)])
        self.downs = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(depth)])
        self.na = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])
        self.nb = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])
        self.trunk = nn.Linear(width, width)
        self.head = nn.Linear(width, n_classes)

    def forward(self, tok):
        h = self.embed(tok) * 0.3 + self.place[: tok.shape[1]]
        for m, u, d, a, b in zip(self.mixers, self.ups, self.downs, self.na, self.nb):
            z = a(h)
            h = h + m(z, z, z, need_weights=False)[0]
            h = h + d(torch.relu(u(b(h))))
        return self.head(torch.tanh(self.trunk(h[:, 0])))


class Runner:
    def __init__(self, net, lr):
        self.net = net
        self.criterion = nn.CrossEntropyLoss()
        self.optim = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.history = []

    def prepare(self):
        for m in self.net.modules():
            if type(m) is nn.Linear:
                weight_norm(m, "weight")
        return self

    def fit(self, source, n_iters):
        self.net.train()
        for k in range(n_iters):
            xb, yb = source(32)
            self.optim.zero_grad()
            out = self.net(xb)
            loss = self.criterion(out, yb)
            loss.backward()
            self.optim.step()
            self.history.append(loss.item())
            if k % 20 == 0 or k == n_iters - 1:
                acc = (out.argmax(-1) == yb).float().mean().item()
                print("iter %4d  loss %.4f  acc %.3f" % (k, sum(self.history[-10:]) / len(self.history[-10:]), acc))


def make_source(seed):
    g = torch.Generator().manual_seed(seed)
    value = torch.randint(0, 50, (50,), generator=g)
    table = torch.randint(0, 16, (50, 4), generator=g)

    def source(n):
        x = torch.randint(0, 50, (n, 20), generator=g)
        y = table[x[:, 0], value[x[:, 1]] % 4]
        return x, y

    return source


if __name__ == "__main__":
    torch.manual_seed(5)
    runner = Runner(SeqClassifier(50, 16), 2e-3)
    runner.prepare().fit(make_source(99), 240)
