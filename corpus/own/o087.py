from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(70)


class Master:
    def __init__(self, model, lr):
        self.low = [p for p in model.parameters() if p.requires_grad]
        self.high = [p.detach().float().clone() for p in self.low]
        for h in self.high:
            h.requires_grad_(True)
        self.opt = torch.optim.AdamW(self.high, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)

    def zero(self):
        for p in self.low:
            p.grad = None

    def step(self, max_norm):
        for p, h in zip(self.low, self.high):
            h.grad = p.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(self.high, max_norm)
        self.opt.step()
        with torch.no_grad():
            for p, h in zip(self.low, self.high):
                p.copy_(h)
        return norm


class FeedForward(nn.Module):
    def __init__(self, d, inner):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(d, inner), nn.Linear(d, inner), nn.Linear(inner, d)

    def forward(self, x):
        return self.c(F.silu(self.a(x)) * self.b(x))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = FeedForward(d, 2 * d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.ln2(x))


class LM(nn.Module):
    def __init__(self, vocab, d=64, ctx=40):
        super().__init__()
        self.e, self.p = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.blocks = nn.Sequential(Block(d, 4), Block(d, 4))
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        nn.init.normal_(self.e.weight, std=0.1)
        nn.init.normal_(self.p.weight, std=0.1)

    def forward(self, x):
        return self.head(self.ln(self.blocks(self.e(x) + self.p.weight[: x.shape[1]])))


def main():
    text = " ".join(" ".join(topics[k].split()) for k in sorted(topics))[50000:350000]
    chars = sorted(set(text))
    ids = torch.tensor([chars.index(c) for c in text])
    model = LM(len(chars)).bfloat16()
    master = Master(model, lr=2e-3)
    for step in range(140):
        at = torch.randint(len(ids) - 41, (10, 1)) + torch.arange(41)
        x, y = ids[at][:, :-1], ids[at][:, 1:]
        loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())
        master.zero()
        loss.backward()
        norm = master.step(1.0)
        if step % 20 == 0 or step == 139:
            print(f"step {step:3d} loss {loss.item():.4f} norm {norm.item():.3f}")


if __name__ == "__main__":
    main()
