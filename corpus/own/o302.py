import torch
from torch import nn
import torch.nn.functional as F

STAGES = [4, 6, 8]
PER_STAGE = 80
VALUES, SEP = 12, 12


def make(n, length, gen):
    s = torch.randint(VALUES, (n, length), generator=gen)
    sep = torch.full((n, 1), SEP)
    return torch.cat([s, sep, s.sort(dim=1).values], dim=1)


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        q, k, v = (t.reshape(B, T, self.h, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.relu(self.up(self.n2(x))).square())


class Sorter(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(VALUES + 1, d)
        self.side = nn.Embedding(2, d)
        self.place = nn.Embedding(max(STAGES) + 1, d)
        self.blocks = nn.Sequential(Block(d, 4), Block(d, 4))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, VALUES)

    def forward(self, ids, length):
        at = torch.arange(ids.size(1))
        side = (at >= length).long()
        x = self.tok(ids) + self.side(side) + self.place(at - side * length)
        return self.head(self.norm(self.blocks(x)))[:, length:]


torch.manual_seed(21)
gen = torch.Generator().manual_seed(22)
net = Sorter()
opt = torch.optim.AdamW(net.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=PER_STAGE, eta_min=2e-4)
for stage, length in enumerate(STAGES):
    for i in range(PER_STAGE):
        ids = make(64, length, gen)
        logits = net(ids[:, :-1], length)
        want = ids[:, length + 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), want.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        sched.step()
        if i % 10 == 0 or i == PER_STAGE - 1:
            right = (logits.argmax(-1) == want).float().mean()
            print(f"len {length} it {i:3d} loss {loss.item():.3f} right {right:.3f} "
                  f"lr {sched.get_last_lr()[0]:.1e} gnorm {norm:.2f}")
