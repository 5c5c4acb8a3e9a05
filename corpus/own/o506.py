import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(90)
DIM, HID, CA, CB, RANK = 32, 128, 12, 5, 8
mix = torch.randn(DIM, DIM) / DIM ** 0.5
wa = torch.randn(DIM, CA)
wb = wa @ torch.randn(CA, CB) / CA ** 0.5 + 0.6 * torch.randn(DIM, CB)


def task(n, w):
    x = torch.randn(n, DIM)
    return x, (torch.tanh(2 * x @ mix) @ w).argmax(1)


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r, alpha=16):
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.s = alpha / r

    def forward(self, x):
        return self.base(x) + self.s * (x @ self.A.T @ self.B.T)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f1, self.f2 = nn.Linear(DIM, HID), nn.Linear(HID, HID)
        self.head = nn.Linear(HID, CA)

    def forward(self, x):
        return self.head(F.relu(self.f2(F.relu(self.f1(x)))))


def fit(net, data, params, lr, steps, tag, bs=128):
    (x, y), (xv, yv) = data
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.01)
    for s in range(steps):
        i = torch.randint(0, len(x), (bs,))
        loss = F.cross_entropy(net(x[i]), y[i])
        opt.zero_grad(); loss.backward(); opt.step()
        if s % 50 == 0 or s == steps - 1:
            with torch.no_grad():
                acc = (net(xv).argmax(1) == yv).float().mean().item()
            print(f"{tag} step {s:4d} loss {loss.item():.4f} val acc {acc:.3f}")


A = task(20000, wa), task(2000, wa)
B = task(4000, wb), task(2000, wb)
net = Net()
fit(net, A, net.parameters(), 3e-3, 900, "[pretrain]")

for p in net.parameters():
    p.requires_grad_(False)
before = {k: v.clone() for k, v in net.state_dict().items()}
net.f1 = LoRALinear(net.f1, RANK)
net.f2 = LoRALinear(net.f2, RANK)
net.head = nn.Linear(HID, CB)
trainable = [p for p in net.parameters() if p.requires_grad]
print("trainable %d of %d parameters" % (sum(p.numel() for p in trainable), sum(p.numel() for p in net.parameters())))
fit(net, B, trainable, 3e-3, 700, "[lora]")
assert torch.equal(before["f1.weight"], net.f1.base.weight) and torch.equal(before["f2.weight"], net.f2.base.weight)
