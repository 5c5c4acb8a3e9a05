import random
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(35)
torch.manual_seed(35)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SEP, END, PAD = 26, 27, 28
VOCAB, PREFIX, TOTAL = 29, 9, 18


def rows(n):
    out, keep = [], []
    for _ in range(n):
        k = random.randint(4, 8)
        word = [random.randrange(26) for _ in range(k)]
        left = [PAD] * (PREFIX - 1 - k) + word + [SEP]
        right = [(c + 3) % 26 for c in reversed(word)] + [END]
        fill = TOTAL - len(left) - len(right)
        out.append(left + right + [PAD] * fill)
        keep.append([0] * len(left) + [1] * len(right) + [0] * fill)
    return torch.tensor(out), torch.tensor(keep, dtype=torch.bool)


class PrefixLM(nn.Module):
    def __init__(self, d=64, heads=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.where = nn.Parameter(torch.randn(TOTAL, d) * 0.1)
        self.att = nn.ModuleList(nn.MultiheadAttention(d, heads, batch_first=True) for _ in range(depth))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d)) for _ in range(depth))
        self.pre = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * depth))
        self.out = nn.Linear(d, VOCAB)
        allowed = torch.tril(torch.ones(TOTAL, TOTAL)).bool()
        allowed[:PREFIX, :PREFIX] = True
        self.register_buffer("blocked", ~allowed)

    def forward(self, ids):
        t = ids.size(1)
        x = self.tok(ids) + self.where[:t]
        for i, (a, m) in enumerate(zip(self.att, self.mlp)):
            h = self.pre[2 * i](x)
            x = x + a(h, h, h, attn_mask=self.blocked[:t, :t], need_weights=False)[0]
            x = x + m(self.pre[2 * i + 1](x))
        return F.log_softmax(self.out(x), dim=-1)


model = PrefixLM()
opt = torch.optim.NAdam(model.parameters(), lr=2.5e-3)
for step in range(300):
    ids, keep = rows(32)
    target = ids[:, 1:].masked_fill(~keep[:, 1:], -100)
    scores = model(ids[:, :-1])
    loss = F.cross_entropy(scores.reshape(-1, VOCAB), target.reshape(-1))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 30 == 0 or step == 299:
        used = target != -100
        acc = (scores.argmax(-1)[used] == target[used]).float().mean().item()
        print(f"step {step:3d} loss {loss.item():.4f} acc {acc:.3f}")
