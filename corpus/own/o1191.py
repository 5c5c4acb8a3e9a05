import math
import time
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

AA = "ACDEFGHIKLMNPQRSTVWY"
MASK = len(AA)
N_FAM, LEN = (5, 32)
gen = torch.Generator().manual_seed(3)
PROFILE = torch.distributions.Dirichlet(torch.full((20,), 0.08))
torch.manual_seed(3)
FAMILIES = PROFILE.sample((N_FAM, LEN))


def sample_proteins(n):
    fam = torch.randint(N_FAM, (n,), generator=gen)
    probs = FAMILIES[fam].reshape(-1, 20)
    return torch.multinomial(probs, 1, generator=gen).view(n, LEN)


def sample_binding(n):
    seq = sample_proteins(n)
    seq[(seq == 1) | (seq == 6)] = 0
    label = torch.randint(2, (n,), generator=gen)
    start = torch.randint(0, LEN - 9, (n,), generator=gen)
    gap = torch.randint(2, 9, (n,), generator=gen)
    rows = torch.arange(n)
    seq[rows, start] = torch.where(label == 1, 1, 6)
    seq[rows, start + gap] = torch.where(label == 1, 6, 1)
    return (seq, label)


class LoRALinear(nn.Module):
    def __init__(self, base, rank=8, alpha=16):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + torch.einsum("btd,rd,or->bto", x, self.a, self.b) * self.scale


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = (nn.LayerNorm(d), nn.LayerNorm(d))
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = (nn.Linear(d, 2 * d), nn.Linear(2 * d, d))

    def forward(self, x):
        h = self.ln1(x)
        split = lambda t: t.unflatten(-1, (self.heads, -1))
        q, k, v = (split(self.q(h)), split(self.k(h)), split(self.v(h)))
        att = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.size(-1))
        mix = torch.einsum("bhij,bjhd->bihd", att.softmax(-1), v).flatten(2)
        x = x + self.o(mix)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class ProteinLM(nn.Module):
    def __init__(self, d=64, heads=4, layers=2):
        super().__init__()
        self.tok = nn.Embedding(21, d)
        self.pos = nn.Embedding(LEN, d)
        self.blocks = nn.ModuleList((Block(d, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, 20)
        self.save_memory = False

    def features(self, seq):
        x = self.tok(seq) + self.pos.weight
        for blk in self.blocks:
            if self.save_memory and self.training:
                x = checkpoint(blk, x, use_reentrant=True)
            else:
                x = blk(x)
        return self.norm(x)


def pretrain(model, steps=160):
    opt = torch.optim.AdamW(model.parameters(), lr=0.002)
    for step in range(steps):
        seq = sample_proteins(32)
        hide = torch.rand(seq.shape, generator=gen) < 0.2
        logits = model.lm_head(model.features(seq.masked_fill(hide, MASK)))
        loss = F.cross_entropy(logits[hide], seq[hide])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0 or step == steps - 1:
            print(f"[base] step {step:3d} masked loss {loss.item():.3f}")


def add_adapters(model, rank=8):
    model.requires_grad_(False)
    for blk in model.blocks:
        for name in ("q", "k", "v", "o", "up", "down"):
            setattr(blk, name, LoRALinear(getattr(blk, name), rank))


def finetune(model, head, steps=300):
    params = [p for p in model.parameters() if p.requires_grad] + list(head.parameters())
    print(f"[lora] {sum((p.numel() for p in params))} trainable values in {len(params)} tensors")
    opt = torch.optim.AdamW(params, lr=0.003, weight_decay=0.0)
    model.save_memory = True
    model.train()
    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = 0.003 * min(1.0, (step + 1) / 30)
        seq, label = sample_binding(48)
        logits = head(model.features(seq).amax(1))
        loss = F.cross_entropy(logits, label)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if step % 40 == 0 or step == steps - 1:
            print(f"[lora] step {step:3d} loss {loss.item():.3f}")


@torch.no_grad()
def accuracy(model, head):
    model.eval()
    seq, label = sample_binding(2000)
    return (head(model.features(seq).amax(1)).argmax(-1) == label).float().mean().item()


t0 = time.time()
model = ProteinLM()
pretrain(model)
add_adapters(model)
head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
finetune(model, head)
print(f"binding accuracy {accuracy(model, head):.3f}, {time.time() - t0:.0f}s")
