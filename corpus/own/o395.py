import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(55)
N, T = 20, 12


class GeluTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        t = torch.tanh(0.7978845608 * (x + 0.044715 * x ** 3))
        ctx.save_for_backward(x, t)
        return 0.5 * x * (1 + t)

    @staticmethod
    def backward(ctx, g):
        x, t = ctx.saved_tensors
        inner = 0.7978845608 * (1 + 3 * 0.044715 * x * x)
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)


class LoRALinear(nn.Module):
    def __init__(self, i, o, r=8, alpha=32):
        super().__init__()
        self.base = nn.Linear(i, o)
        self.down = nn.Parameter(torch.randn(r, i) / i ** 0.5)
        self.up = nn.Parameter(torch.zeros(o, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.down.t() @ self.up.t()) * self.scale


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = LoRALinear(d, 3 * d), LoRALinear(d, d)
        self.fc1, self.fc2 = LoRALinear(d, 2 * d), LoRALinear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(GeluTanh.apply(self.fc1(self.n2(x))))


class Net(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(N, d)
        self.pos = nn.Parameter(torch.randn(T, d) * 0.3)
        self.layers = nn.ModuleList([Layer(d), Layer(d)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, N)

    def forward(self, x):
        h = self.tok(x) + self.pos
        for l in self.layers:
            h = l(h)
        return self.head(self.norm(h))


def batch(shift):
    x = torch.randint(N, (32, T))
    return x, (x.flip(1) + shift) % N


net = Net()
for name, p in net.named_parameters():
    p.requires_grad_(name.endswith((".up", ".down")) or name.startswith(("head", "norm")))
live = [p for p in net.parameters() if p.requires_grad]
print(f"training {sum(p.numel() for p in live)} of {sum(p.numel() for p in net.parameters())} weights")
opt = torch.optim.AdamW(live, lr=2e-3, weight_decay=0.0)
for step in range(240):
    x, y = batch(3)
    logits = net(x)
    loss = F.cross_entropy(logits.view(-1, N), y.reshape(-1))
    loss.backward()
    opt.step()
    for p in live:
        p.grad = None
    if step % 20 == 0 or step == 239:
        print(f"step {step} loss {loss.item():.4f} acc {(logits.argmax(-1) == y).float().mean():.3f}")
