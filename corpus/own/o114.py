import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(88)


class SelfAttention(nn.Module):
    def __init__(self, d_model, n_heads, names=("query", "key", "value")):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.maps = nn.ModuleDict(dict.fromkeys(names, nn.Linear(d_model, d_model, bias=False)))
        self.merge = nn.Linear(d_model, d_model, bias=False)

    def heads(self, name, x):
        return self.maps[name](x).unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2)

    def forward(self, x, bias):
        q, k, v = self.heads("query", x), self.heads("key", x), self.heads("value", x)
        w = (q @ k.transpose(-1, -2)) * self.d_head ** -0.5 + bias
        return self.merge((w.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.pre_attn = nn.LayerNorm(d_model)
        self.attn = SelfAttention(d_model, n_heads)
        self.pre_ff = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.GELU(), nn.Linear(2 * d_model, d_model))

    def forward(self, x, bias):
        x = x + self.attn(self.pre_attn(x), bias)
        return x + self.ff(self.pre_ff(x))


class Lookup(nn.Module):
    def __init__(self, n_in, n_out, max_len, d_model=64, n_heads=2, n_layers=1):
        super().__init__()
        self.tok = nn.Embedding(n_in, d_model)
        self.pos = nn.Embedding(max_len, d_model)
        self.layers = nn.ModuleList([Layer(d_model, n_heads) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.out = nn.Linear(d_model, n_out)
        self.register_buffer("bias", torch.full((max_len, max_len), float("-inf")).triu(1), persistent=False)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[:x.size(1)]
        for layer in self.layers:
            h = layer(h, self.bias[:x.size(1), :x.size(1)])
        return self.out(self.norm(h))


def delayed(n, length=24, symbols=32, lag=5):
    x = torch.randint(symbols, (n, length))
    return x, x[:, :-lag]


SYMBOLS, LAG = 32, 5
model = Lookup(SYMBOLS, SYMBOLS, 24)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99))
for step in range(150):
    x, past = delayed(48, symbols=SYMBOLS, lag=LAG)
    logits = model(x)[:, LAG:]
    loss = F.cross_entropy(logits.reshape(-1, SYMBOLS), past.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == 149:
        acc = (logits.argmax(-1) == past).float().mean().item()
        print(f"step {step:3d} loss {loss.item():.4f} acc {acc:.3f}")
