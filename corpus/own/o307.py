import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=3e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    def zero_grad(self, set_to_none=False):
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad
                if grad is None:
                    continue
                grad = None if set_to_none else torch.zeros_like(grad)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(b1 * m + (1 - b1) * p.grad), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class CausalConv(nn.Module):
    def __init__(self, d, kernel, dilation):
        super().__init__()
        self.left = (kernel - 1) * dilation
        self.conv = nn.Conv1d(d, 2 * d, kernel, dilation=dilation)
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        y = F.pad(self.norm(x).transpose(1, 2), (self.left, 0))
        return x + F.glu(self.conv(y), dim=1).transpose(1, 2)


class ConvLM(nn.Module):
    def __init__(self, vocab, d=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.stack = nn.Sequential(*[CausalConv(d, 3, 2 ** i) for i in range(4)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids):
        return self.head(self.norm(self.stack(self.tok(ids))))


torch.manual_seed(77)
raw = "\n".join(topics[k] for k in sorted(topics)).encode("ascii", "ignore")
data = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()
model = ConvLM(128)
optimizer = Lion(model.parameters(), lr=1e-3, weight_decay=0.01)
for it in range(200):
    start = torch.randint(len(data) - 65, (24,))
    window = data[start[:, None] + torch.arange(65)]
    logits = model(window[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 128), window[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if it % 20 == 0 or it == 199:
        print(f"iter {it}: loss {loss.item():.4f}")
