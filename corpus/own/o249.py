import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(404)
text = topics["operator-summary"] + topics["numeric-types"] + topics["exprlists"] + topics["string-methods"]
vocab = sorted(set(text))
ids = torch.tensor([vocab.index(c) for c in text])


class CompensatedAdam:
    def __init__(self, params, lr, betas=(0.9, 0.98), eps=1e-8):
        self.params, self.lr, self.betas, self.eps, self.t = list(params), lr, betas, eps, 0
        self.m = [torch.zeros_like(p, dtype=torch.float32) for p in self.params]
        self.v = [torch.zeros_like(p, dtype=torch.float32) for p in self.params]
        self.rest = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for p, m, v, rest in zip(self.params, self.m, self.v, self.rest):
            g = p.grad.float()
            m.lerp_(g, 1 - b1)
            v.lerp_(g * g, 1 - b2)
            move = -self.lr * (m / (1 - b1 ** self.t)) / ((v / (1 - b2 ** self.t)).sqrt() + self.eps)
            wanted = p.float() + rest.float() + move
            p.copy_(wanted)
            rest.copy_(wanted - p.float())


class SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clamp_min(0)
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(ctx, grad):
        y, = ctx.saved_tensors
        return grad * 2 * y


class Net(nn.Module):
    def __init__(self, d=48, context=8):
        super().__init__()
        self.table = nn.Embedding(len(vocab), d)
        self.lift = nn.Linear(context * d, 128)
        self.mid = nn.Linear(128, 128)
        self.out = nn.Linear(128, len(vocab))
        self.norm = nn.LayerNorm(128)

    def forward(self, x):
        h = self.lift(self.table(x).flatten(1))
        h = h + self.mid(SquaredReLU.apply(self.norm(h)))
        return self.out(h).float()


net = Net().to(torch.bfloat16)
opt = CompensatedAdam(net.parameters(), lr=3e-4)
window = []
for step in range(260):
    at = torch.randint(len(ids) - 9, (96,))
    rows = ids[at[:, None] + torch.arange(9)]
    loss = F.cross_entropy(net(rows[:, :8]), rows[:, 8])
    opt.zero_grad()
    loss.backward()
    opt.step()
    window = (window + [loss.item()])[-20:]
    if step % 20 == 0 or step == 259:
        print(f"{step:4d}  {sum(window) / len(window):.4f}")
