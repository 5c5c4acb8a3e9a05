import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(14)
g = torch.Generator().manual_seed(3)
CH, SEQ, CLS, W = 12, 10, 6, 48
protos = torch.randn(CLS, SEQ, CH, generator=g)


def get(n):
    y = torch.randint(0, CLS, (n,))
    return protos[y] + torch.randn(n, SEQ, CH) * 1.2, y


def tower(depth):
    mods = []
    for i in range(depth):
        lin = nn.Linear(CH if i == 0 else W, W)
        nn.init.xavier_uniform_(lin.weight)
        nn.init.zeros_(lin.bias)
        mods += [lin, nn.Sigmoid()]
    return nn.Sequential(*mods)


class SensorNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames = tower(7)
        self.pos = nn.Parameter(torch.randn(SEQ, W) * 0.1)
        self.mix = nn.TransformerEncoderLayer(W, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(W)
        self.out = nn.Linear(W, CLS)

    def forward(self, x):
        return self.out(self.norm(self.mix(self.frames(x) + self.pos)).mean(1))


def run(steps=200):
    net = SensorNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    lossf = nn.CrossEntropyLoss()
    for s in range(steps):
        x, y = get(48)
        loss = lossf(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 20 == 0 or s == steps - 1:
            print("iter", s, "loss %.4f" % loss.item())
    with torch.no_grad():
        x, y = get(500)
        print("accuracy %.3f" % (net(x).argmax(1) == y).float().mean().item())


run()
