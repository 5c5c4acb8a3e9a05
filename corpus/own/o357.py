import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(100)
DIGITS, N = 12, 8
SEP = DIGITS
TOTAL = 2 * N + 1


def problem(batch):
    src = torch.randint(DIGITS, (batch, N))
    return torch.cat([src, torch.full((batch, 1), SEP), src.sort(1).values], 1)


def visibility(prefix, total):
    row, col = torch.arange(total)[:, None], torch.arange(total)[None]
    return (col <= row) | (col < prefix)


class UnifiedLM(nn.Module):
    def __init__(self, d=64, heads=4, depth=2):
        super().__init__()
        self.heads = heads
        self.tok, self.pos = nn.Embedding(DIGITS + 1, d), nn.Embedding(TOTAL, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(depth))
        self.mix = nn.ModuleList(nn.Linear(d, d) for _ in range(depth))
        self.mlp = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))
                                 for _ in range(depth))
        self.pre = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth + 1))
        self.register_buffer("seen", visibility(N + 1, TOTAL))

    def forward(self, ids):
        b, t = ids.shape
        x = self.tok(ids) + self.pos.weight[:t]
        for i in range(len(self.qkv)):
            q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv[i](self.pre[i](x)).chunk(3, -1))
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=self.seen[:t, :t])
            x = x + self.mix[i](a.transpose(1, 2).flatten(2))
            x = x + self.mlp[i](x)
        return self.pre[-1](x) @ self.tok.weight.t() * 0.125


net = UnifiedLM()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.0)
for step in range(281):
    ids = problem(32)
    logits = net(ids[:, :-1])[:, N:]
    goal = ids[:, N + 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), goal.flatten())
    net.zero_grad()
    loss.backward()
    opt.step()
    if step % 28 == 0:
        exact = (logits.argmax(-1) == goal).all(1).float().mean().item()
        print(f"step {step:3d} sort loss {loss.item():.4f} solved {exact:.2f}")
