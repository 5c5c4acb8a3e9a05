from pydoc_data.topics import topics

import torch
import torch.nn as nn

torch.manual_seed(60)


class FusedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, target):
        logits = hidden @ weight.t()
        logits -= logits.amax(-1, keepdim=True)
        lse = logits.exp().sum(-1).log()
        picked = logits.gather(1, target[:, None]).squeeze(1)
        probs = logits.sub_(lse[:, None]).exp_()
        ctx.save_for_backward(hidden, weight, target, probs)
        return (lse - picked).mean()

    @staticmethod
    def backward(ctx, grad):
        hidden, weight, target, probs = ctx.saved_tensors
        d = probs.clone()
        d[torch.arange(len(target)), target] -= 1.0
        d *= grad / len(target)
        return d @ weight, d.t() @ hidden, None


class SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        r = x.clamp(min=0)
        ctx.save_for_backward(r)
        return r * r

    @staticmethod
    def backward(ctx, grad):
        (r,) = ctx.saved_tensors
        return 2 * r * grad


class Cell(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.att = nn.MultiheadAttention(d, h, batch_first=True, bias=False)
        self.a, self.b = nn.LayerNorm(d), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x, mask):
        y = self.a(x)
        x = x + self.att(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.down(SquaredReLU.apply(self.up(self.b(x))))


class TiedLM(nn.Module):
    def __init__(self, vocab, ctx, d=64, depth=2):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab, d) * 0.05)
        self.place = nn.Parameter(torch.randn(ctx, d) * 0.05)
        self.cells = nn.ModuleList(Cell(d, 4) for _ in range(depth))
        self.final = nn.LayerNorm(d)
        self.register_buffer("mask", torch.ones(ctx, ctx, dtype=torch.bool).triu(1))

    def forward(self, x, y):
        h = self.table[x] + self.place
        for cell in self.cells:
            h = cell(h, self.mask)
        return FusedCrossEntropy.apply(self.final(h).flatten(0, 1), self.table, y.flatten())


CTX = 40
text = "".join(topics[k] for k in list(topics)[:40])
chars = sorted(set(text))
ids = torch.tensor([chars.index(c) for c in text])
lm = TiedLM(len(chars), CTX)
opt = torch.optim.RMSprop(lm.parameters(), lr=1e-3, alpha=0.95)
for step in range(240):
    at = torch.randint(len(ids) - CTX - 1, (12, 1)) + torch.arange(CTX + 1)
    rows = ids[at]
    loss = lm(rows[:, :-1], rows[:, 1:])
    lm.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 239:
        print("step", step, "nll", round(loss.item(), 4))
