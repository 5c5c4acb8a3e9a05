import ast
import inspect
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

SEQ, MICRO, ACCUM = 40, 6, 2


class Experts(nn.Module):
    def __init__(self, d, hidden, n):
        super().__init__()
        self.router = nn.Linear(d, n, bias=False)
        nn.init.zeros_(self.router.weight)
        self.w_in = nn.Parameter(torch.randn(n, d, hidden) * d ** -0.5)
        self.w_out = nn.Parameter(torch.zeros(n, hidden, d))

    def forward(self, x):
        p = self.router(x).softmax(-1)
        h = F.gelu(torch.einsum("btd,ndh->btnh", x, self.w_in))
        y = torch.einsum("btnh,nhd->btnd", h, self.w_out)
        return (p.unsqueeze(-1) * y).sum(2)


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        nn.init.zeros_(self.proj.weight)
        self.experts = Experts(d, d, 3)

    def forward(self, x):
        b, t, d = x.shape
        h = F.layer_norm(x, (d,))
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.experts(F.layer_norm(x, (d,)))


class ExpertLM(nn.Module):
    def __init__(self, vocab, d=48, heads=4, depth=2):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.wpe = nn.Embedding(SEQ, d)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(depth))
        self.lm = nn.Linear(d, vocab, bias=False)
        nn.init.normal_(self.wte.weight, std=0.1)
        nn.init.normal_(self.wpe.weight, std=0.1)
        nn.init.zeros_(self.lm.weight)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[:ids.size(1)]
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.lm(F.layer_norm(x, x.shape[-1:]))


def main():
    torch.manual_seed(93)
    text = inspect.getsource(ast)
    vocab = sorted(set(text))
    ids = torch.tensor([vocab.index(c) for c in text])
    model = ExpertLM(len(vocab))
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(150):
        for g in opt.param_groups:
            g["lr"] = 4e-3 * min((step + 1) / 10, (150 - step) / 100, 1.0)
        total = 0.0
        for _ in range(ACCUM):
            at = torch.randint(len(ids) - SEQ - 1, (MICRO,)).tolist()
            rows = torch.stack([ids[a:a + SEQ + 1] for a in at])
            logits = model(rows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if step % 15 == 0 or step == 149:
            print(f"step {step} loss {total / (ACCUM * MICRO * SEQ):.4f} norm {norm.item():.1f}")


main()
