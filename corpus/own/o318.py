import torch
import torch.nn as nn
import torch.nn.functional as F

CTX, BATCH, STEPS, VOCAB = 24, 32, 180, 16


class Experts(nn.Module):
    def __init__(self, d, hidden, count):
        super().__init__()
        self.w_in = nn.Parameter(torch.randn(count, d, hidden) * d ** -0.5)
        self.w_out = nn.Parameter(torch.randn(count, hidden, d) * hidden ** -0.5)

    def forward(self, x, weight):
        h = F.gelu(torch.einsum("btd,edh->bteh", x, self.w_in))
        return torch.einsum("bteh,ehd,bte->btd", h, self.w_out, weight)


class SparseMLP(nn.Module):
    def __init__(self, d, hidden=48, count=4, top=2):
        super().__init__()
        self.top = top
        self.router = nn.Linear(d, count, bias=False)
        self.experts = Experts(d, hidden, count)

    def forward(self, x):
        p = self.router(x).softmax(-1)
        best, which = p.topk(self.top, dim=-1)
        weight = torch.zeros_like(p).scatter(-1, which, best / best.sum(-1, keepdim=True))
        load = (weight > 0).float().mean((0, 1))
        return self.experts(x, weight), (load * p.mean((0, 1))).sum() * p.size(-1)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, bias=False, batch_first=True)
        self.moe = SparseMLP(d)

    def forward(self, x, mask):
        y = self.ln1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        y, aux = self.moe(self.ln2(x))
        return x + y, aux


class MoE(nn.Module):
    def __init__(self, d=32, heads=4, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(CTX, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, VOCAB, bias=False)

    def forward(self, ids):
        mask = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).triu(1)
        x, total = self.tok(ids) + self.pos.weight[: ids.size(1)], 0.0
        for b in self.blocks:
            x, aux = b(x, mask)
            total = total + aux
        return self.head(self.norm(x)), total

    def configure_optimizers(self, lr, decay):
        with_decay, without = [], []
        for module in self.modules():
            for p in module.parameters(recurse=False):
                if isinstance(module, nn.Linear):
                    with_decay.append(p)
                elif isinstance(module, (nn.LayerNorm, nn.Embedding)):
                    without.append(p)
        groups = [{"params": with_decay, "weight_decay": decay}, {"params": without, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def examples(table, n):
    ids = torch.randint(VOCAB, (n, CTX))
    return ids, table[ids[:, :-1], ids[:, 1:]]


torch.manual_seed(18)
table = torch.randint(VOCAB, (VOCAB, VOCAB))
model = MoE()
opt = model.configure_optimizers(4e-3, 0.05)
for step in range(STEPS):
    ids, want = examples(table, BATCH)
    logits, aux = model(ids)
    nll = F.cross_entropy(logits[:, 1:].flatten(0, 1), want.flatten())
    opt.zero_grad()
    (nll + 0.01 * aux).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 15 == 0 or step == STEPS - 1:
        print(f"{step}: loss {nll.item():.4f} balance {aux.item():.3f}")
