import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(55)


class LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, decay, value):
        out = torch.empty_like(value)
        state = torch.zeros_like(value[:, 0])
        for t in range(value.size(1)):
            state = decay[:, t] * state + value[:, t]
            out[:, t] = state
        ctx.save_for_backward(decay, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        decay, out = ctx.saved_tensors
        T = grad.size(1)
        d_value = torch.empty_like(grad)
        run = torch.zeros_like(grad[:, 0])
        for t in range(T):
            run = grad[:, t] + decay[:, t] * run
            d_value[:, t] = run
        prev = torch.cat([out[:, 1:], torch.zeros_like(out[:, :1])], 1)
        return d_value * prev, d_value


class RecurrentBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.gate, self.cand, self.out = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
        nn.init.constant_(self.gate.bias, 1.0)

    def forward(self, x):
        z = self.norm1(x)
        f = torch.sigmoid(self.gate(z))
        h = LinearScan.apply(f, (1 - f) * self.cand(z))
        x = x + self.out(h)
        return x + self.mlp(self.norm2(x))


class ScanLM(nn.Module):
    def __init__(self, vocab, d=64, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.Sequential(*[RecurrentBlock(d) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.emb(x))))


text = "".join(topics[k] for k in sorted(topics))[:250000]
chars = sorted(set(text))
stream = torch.tensor([chars.index(c) for c in text])
model = ScanLM(len(chars))
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(180):
    i = torch.randint(0, len(stream) - 33, (16,))
    w = stream[i[:, None] + torch.arange(33)]
    loss = F.cross_entropy(model(w[:, :-1]).transpose(1, 2), w[:, 1:])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 179:
        print(f"step {step} loss {loss.item():.3f}")
