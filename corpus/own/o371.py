import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(100)
TOKENS, SPAN = 40, 24


class Experts(nn.Module):
    def __init__(self, d, hidden, count=4, k=2):
        super().__init__()
        self.k, self.count = k, count
        self.gate = nn.Linear(d, count, bias=False)
        self.w_in = nn.Parameter(torch.randn(count, d, hidden) / d ** 0.5)
        self.w_out = nn.Parameter(torch.randn(count, hidden, d) / hidden ** 0.5)

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        probs = self.gate(flat).softmax(-1)
        top, where = probs.topk(self.k, dim=-1)
        top = top / top.sum(-1, keepdim=True)
        weight = torch.zeros_like(probs).scatter(1, where, top)
        out = torch.zeros_like(flat)
        for e in range(self.count):
            rows = weight[:, e].nonzero().squeeze(1)
            if len(rows):
                y = F.relu(flat[rows] @ self.w_in[e]) @ self.w_out[e]
                out = out.index_add(0, rows, y * weight[rows, e:e + 1])
        used = (weight > 0).float().mean(0)
        balance = self.count * (used * probs.mean(0)).sum() / self.k
        return out.view_as(x), balance


class MoELayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.moe = Experts(d, 2 * d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, mask):
        x = self.n1(x + self.attn(x, x, x, attn_mask=mask, need_weights=False)[0])
        y, balance = self.moe(x)
        return self.n2(x + y), balance


class MoELM(nn.Module):
    def __init__(self, d=48, depth=2):
        super().__init__()
        self.emb = nn.Embedding(TOKENS, d)
        self.pos = nn.Embedding(SPAN, d)
        self.layers = nn.ModuleList(MoELayer(d) for _ in range(depth))
        self.out = nn.Linear(d, TOKENS)

    def forward(self, x):
        mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        h, balance = self.emb(x) + self.pos.weight[:x.size(1)], 0.0
        for layer in self.layers:
            h, b = layer(h, mask)
            balance = balance + b
        return self.out(h), balance


table = torch.randint(TOKENS, (TOKENS, 2))


def walk(n):
    cur = torch.randint(TOKENS, (n,))
    rows = [cur]
    for i in range(SPAN):
        cur = table[cur, (torch.rand(n) < 0.25).long()]
        cur = torch.where(torch.rand(n) < 0.05, torch.randint(TOKENS, (n,)), cur)
        rows.append(cur)
    return torch.stack(rows, 1)


model = MoELM()
opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.99), eps=1e-9)
for step in range(220):
    seq = walk(24)
    logits, balance = model(seq[:, :-1])
    nll = F.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten(), reduction="sum")
    loss = nll + 1.0 * balance
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == 219:
        print(f"step {step:3d} loss {loss.item():.2f} grad {norm:.1f} balance {balance.item():.3f}")
