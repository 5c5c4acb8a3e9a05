import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(40)
CTX, BATCH, BITS = 40, 16, 4


class Snap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, bits):
        top = 2 ** (bits - 1) - 1
        scale = w.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / top
        return (w / scale).round().clamp(-top, top) * scale

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class QLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, Snap.apply(self.weight, BITS), self.bias)


class Mixer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv, self.back = QLinear(d, 3 * d), QLinear(d, d)
        self.fc, self.fo = QLinear(d, 3 * d), QLinear(3 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.back(a.transpose(1, 2).reshape(b, t, d))
        return x + self.fo(F.relu(self.fc(self.n2(x))).square())


class QuantLM(nn.Module):
    def __init__(self, vocab, d=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(CTX, d)
        self.body = nn.Sequential(Mixer(d, 4), Mixer(d, 4))
        self.norm = nn.RMSNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.body(self.wte(x) + self.wpe.weight)))


text = "\n".join(topics[k] for k in sorted(topics))
alphabet = sorted(set(text))
lookup = {c: i for i, c in enumerate(alphabet)}
stream = torch.tensor([lookup[c] for c in text])
net = QuantLM(len(alphabet))
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.0)
for step in range(160):
    at = torch.randint(len(stream) - CTX - 1, (BATCH, 1)) + torch.arange(CTX + 1)
    rows = stream[at]
    loss = F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 159:
        print(f"{step:4d} loss {loss.item():.3f}")
