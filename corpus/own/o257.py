import inspect
import tokenize

import torch
import torch.nn as nn
import torch.nn.functional as F

SEQ, BATCH, STEPS = 48, 10, 140


class Experts(nn.Module):
    def __init__(self, d, n_experts=4, k=2):
        super().__init__()
        self.k, self.n = k, n_experts
        self.gate = nn.Linear(d, n_experts, bias=False)
        self.up = nn.Parameter(torch.randn(n_experts, d, 2 * d) * d ** -0.5)
        self.down = nn.Parameter(torch.randn(n_experts, 2 * d, d) * (2 * d) ** -0.5)

    def forward(self, x):
        scores = self.gate(x)
        probs = scores.softmax(-1)
        top, idx = probs.topk(self.k, dim=-1)
        weight = torch.zeros_like(probs).scatter(-1, idx, top / top.sum(-1, keepdim=True))
        hidden = F.gelu(torch.einsum("btd,edh->bteh", x, self.up))
        out = torch.einsum("bteh,ehd,bte->btd", hidden, self.down, weight)
        load = (weight > 0).float().mean((0, 1))
        balance = self.n * (load * probs.mean((0, 1))).sum() / self.k
        return out, balance


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.moe = Experts(d)

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        y, balance = self.moe(self.n2(x))
        return x + y, balance


class SparseLM(nn.Module):
    def __init__(self, vocab, d=64, depth=2, heads=4):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(SEQ, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)
        self.register_buffer("mask", torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1))

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        balances = []
        for b in self.blocks:
            x, bal = b(x, self.mask)
            balances.append(bal)
        return self.head(self.norm(x)), torch.stack(balances).mean()


class Criterion(nn.Module):
    def __init__(self, weight_dict):
        super().__init__()
        self.weight_dict = weight_dict

    def forward(self, logits, balance, target):
        return {
            "loss_nll": F.cross_entropy(logits.flatten(0, 1), target.flatten()),
            "loss_z": torch.logsumexp(logits, -1).pow(2).mean(),
            "loss_balance": balance,
        }


def main():
    torch.manual_seed(21)
    text = inspect.getsource(tokenize) + inspect.getsource(inspect)
    chars = sorted(set(text))
    lookup = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([lookup[c] for c in text])
    model = SparseLM(len(chars))
    criterion = Criterion({"loss_ce": 1.0, "loss_z": 1e-4, "loss_balance": 1e-2})
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(STEPS):
        start = torch.randint(len(data) - SEQ - 1, (BATCH,))
        rows = data[start[:, None] + torch.arange(SEQ + 1)]
        logits, balance = model(rows[:, :-1])
        loss_dict = criterion(logits, balance, rows[:, 1:])
        weight_dict = criterion.weight_dict
        losses = sum(loss_dict[k] * weight_dict[k] for k in loss_dict if k in weight_dict)
        opt.zero_grad()
        losses.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 20 == 0 or step == STEPS - 1:
            print(f"step {step} loss {loss_dict['loss_nll'].item():.4f} "
                  f"z {loss_dict['loss_z'].item():.3f} balance {loss_dict['loss_balance'].item():.3f}")


if __name__ == "__main__":
    main()
