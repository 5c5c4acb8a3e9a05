import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(6)

V, HALF, BATCH, STEPS = 40, 14, 48, 250


class Head(nn.Module):
    def __init__(self, d, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.W_qkv = nn.Linear(d, 3 * d, bias=False)
        self.W_o = nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.W_qkv(x).reshape(b, t, 3, self.n_heads, d // self.n_heads).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.W_o(z.transpose(1, 2).reshape(b, t, d))


class AttnOnly(nn.Module):
    def __init__(self, d=64, layers=2, heads=4, ctx=2 * HALF):
        super().__init__()
        self.embed = nn.Embedding(V, d)
        self.pos = nn.Embedding(ctx, d)
        self.attn = nn.ModuleList(Head(d, heads) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers + 1))
        self.unembed = nn.Linear(d, V, bias=False)

    def forward(self, x):
        r = self.embed(x) + self.pos(torch.arange(x.shape[1]))
        for a, n in zip(self.attn, self.norm):
            r = r + a(n(r))
        return self.unembed(self.norm[-1](r))


def data():
    first = torch.randint(V, (BATCH, HALF))
    return torch.cat([first, first], 1)


model = AttnOnly()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
for step in range(STEPS):
    x = data()
    logits = model(x)[:, :-1]
    nll = F.cross_entropy(logits.transpose(1, 2), x[:, 1:], reduction="none")
    loss = nll.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0 or step == STEPS - 1:
        print(f"step {step} loss {loss.item():.4f} repeat {nll[:, HALF:].mean().item():.4f}")
