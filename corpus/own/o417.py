import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

SYM, PRE, ANS, SEP = 16, 8, 8, 16


def task(n, gen):
    """answer = question sorted"""
    q = torch.randint(0, SYM, (n, PRE), generator=gen)
    a = q.sort(1).values
    seq = torch.cat([q, torch.full((n, 1), SEP), a], 1)
    labels = seq.clone()
    labels[:, :PRE + 1] = -100
    return seq[:, :-1], labels[:, 1:]


def prefix_mask(total, prefix):
    """True where attention is permitted"""
    ok = torch.ones(total, total).tril().bool()
    ok[:, :prefix] = True
    return ok


class PrefixLM(nn.Module):
    def __init__(self, d=64, heads=4, depth=2):
        super().__init__()
        total = PRE + ANS
        self.tok, self.pos = nn.Embedding(SYM + 1, d), nn.Embedding(total, d)
        self.blocks = nn.ModuleList(nn.ModuleDict(dict(
            n1=nn.LayerNorm(d), qkv=nn.Linear(d, 3 * d), o=nn.Linear(d, d), n2=nn.LayerNorm(d),
            mlp=nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)))) for _ in range(depth))
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, SYM + 1))
        self.heads = heads
        self.register_buffer("ok", prefix_mask(total, PRE + 1))

    def forward(self, x):
        B, T = x.shape
        h = self.tok(x) + self.pos.weight[:T]
        for b in self.blocks:
            q, k, v = b["qkv"](b["n1"](h)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.ok[:T, :T])
            h = h + b["o"](y.transpose(1, 2).reshape(B, T, -1))
            h = h + b["mlp"](b["n2"](h))
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--lr", type=float, default=3e-3)
    a = ap.parse_args()
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(3)
    net = PrefixLM()
    opt = torch.optim.AdamW(net.parameters(), lr=a.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, a.lr, total_steps=a.steps)
    for step in range(a.steps):
        x, y = task(48, gen)
        loss = F.cross_entropy(net(x).transpose(1, 2), y, ignore_index=-100)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 20 == 0 or step == a.steps - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    with torch.no_grad():
        x, y = task(256, gen)
        keep = y != -100
        print(f"held-out answer accuracy {(net(x).argmax(-1) == y)[keep].float().mean().item():.4f}")


if __name__ == "__main__":
    main()
