import re
from collections import Counter
from pydoc_data import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

CTX, DIM, BATCH, STEPS, VOCAB = 32, 64, 16, 260, 1200


class FusedLinearXent(torch.autograd.Function):
    """Never keeps the full logit matrix; gradients are formed chunk by chunk in forward."""

    @staticmethod
    def forward(ctx, h, weight, target, chunk):
        n = h.size(0)
        grad_h, grad_w = torch.empty_like(h), torch.zeros_like(weight)
        total = h.new_zeros(())
        for lo in range(0, n, chunk):
            hc, tc = h[lo:lo + chunk], target[lo:lo + chunk]
            logp = F.log_softmax(hc @ weight.T, dim=-1)
            rows = torch.arange(len(tc))
            total -= logp[rows, tc].sum()
            g = logp.exp_().div_(n)
            g[rows, tc] -= 1.0 / n
            grad_h[lo:lo + chunk] = g @ weight
            grad_w.addmm_(g.T, hc)
        ctx.save_for_backward(grad_h, grad_w)
        return total / n

    @staticmethod
    def backward(ctx, up):
        grad_h, grad_w = ctx.saved_tensors
        return up * grad_h, up * grad_w, None, None


class WordLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(CTX, DIM) * 0.02)
        self.blk = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, 4, 3 * DIM, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2))
        self.norm = nn.LayerNorm(DIM)
        self.unembed = nn.Parameter(torch.randn(VOCAB, DIM) * 0.02)
        nn.init.normal_(self.tok.weight, std=0.1)

    def hidden(self, x):
        h = self.tok(x) + self.pos
        mask = nn.Transformer.generate_square_subsequent_mask(CTX)
        for b in self.blk:
            h = b(h, src_mask=mask, is_causal=True)
        return self.norm(h)

    def forward(self, x, y):
        return FusedLinearXent.apply(self.hidden(x).flatten(0, 1), self.unembed, y.flatten(), 128)


def corpus():
    words = re.findall(r"\w+|[^\w\s]", " ".join(topics.topics[k] for k in sorted(topics.topics)).lower())
    vocab = {w: i + 1 for i, (w, _) in enumerate(Counter(words).most_common(VOCAB - 1))}
    ids = torch.tensor([vocab.get(w, 0) for w in words])
    k = int(0.92 * len(ids))
    return ids[:k], ids[k:]


def windows(ids, n):
    at = torch.randint(0, len(ids) - CTX - 1, (n, 1)) + torch.arange(CTX + 1)
    w = ids[at]
    return w[:, :-1], w[:, 1:]


torch.manual_seed(19)
train, valid = corpus()
lm = WordLM()
opt = torch.optim.Adam(lm.parameters(), lr=2e-3)
for step in range(STEPS):
    loss = lm(*windows(train, BATCH))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step} xent {loss.item():.4f}", flush=True)

with torch.no_grad():
    x, y = windows(valid, 64)
    val = F.cross_entropy(lm.hidden(x).flatten(0, 1) @ lm.unembed.T, y.flatten())
print(f"valid xent {val.item():.4f}")
