import math
import torch
from torch import nn
from torch.nn import functional as F
from pydoc_data.topics import topics


def orthogonalise(g, rounds=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    flip = x.size(0) > x.size(1)
    x = x.T if flip else x
    for _ in range(rounds):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if flip else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(buf, group["momentum"]))
                p.add_(update, alpha=-group["lr"] * math.sqrt(max(1, p.size(0) / p.size(1))))


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.fc, self.back = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.back.weight)

    def forward(self, x):
        n, t, d = x.shape
        y = F.rms_norm(x, (d,))
        q, k, v = self.qkv(y).view(n, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(F.rms_norm(q, (d // self.h,)), F.rms_norm(k, (d // self.h,)), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, d))
        return x + self.back(F.relu(self.fc(F.rms_norm(x, (d,)))).square())


class Net(nn.Module):
    def __init__(self, vocab, context, d=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(context, d)
        self.prev = nn.Embedding(vocab, d)
        self.layers = nn.Sequential(Layer(d, 4), Layer(d, 4))
        self.head = nn.Linear(d, vocab, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.size(1)] + self.prev(F.pad(ids[:, :-1], (1, 0)))
        x = self.layers(x)
        logits = self.head(F.rms_norm(x, (x.size(-1),)))
        return 15 * torch.tanh(logits / 15)


torch.manual_seed(8)
text = "".join(topics.values())
vocab = sorted(set(text))
lookup = {ch: i for i, ch in enumerate(vocab)}
stream = torch.tensor([lookup[ch] for ch in text])
context, batch = 64, 16
net = Net(len(vocab), context)
matrices = list(net.layers.parameters())
others = [net.tok.weight, net.prev.weight, net.pos.weight, net.head.weight]
optimizers = [Muon(matrices, lr=0.02), torch.optim.Adam(others, lr=0.01, betas=(0.8, 0.95), eps=1e-10)]
for it in range(151):
    for o, peak in zip(optimizers, (0.02, 0.01)):
        o.param_groups[0]["lr"] = peak * min(1.0, (151 - it) / 100)
    at = torch.randint(len(stream) - context - 1, (batch, 1))
    seq = stream[at + torch.arange(context + 1)]
    loss = F.cross_entropy(net(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten(), reduction="sum")
    loss.backward()
    for o in optimizers:
        o.step()
    net.zero_grad(set_to_none=True)
    if it % 15 == 0:
        print(f"it {it} loss {loss.item():.1f} ({loss.item() / batch / context:.3f} per char)")
