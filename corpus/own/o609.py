import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(90)

VOCAB, CTX, DIM, HEADS = 25, 24, 48, 4
MASK_ID = VOCAB - 1


class DiTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1 = nn.LayerNorm(DIM, elementwise_affine=False)
        self.n2 = nn.LayerNorm(DIM, elementwise_affine=False)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(approximate="tanh"), nn.Linear(4 * DIM, DIM))
        self.ada = nn.Linear(DIM, 6 * DIM)
        nn.init.zeros_(self.ada.weight)
        nn.init.zeros_(self.ada.bias)

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(F.silu(c))[:, None].chunk(6, dim=-1)
        h = self.n1(x) * (1 + s1) + b1
        b, t, _ = h.shape
        q, k, v = self.qkv(h).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=False)
        x = x + g1 * self.o(a.transpose(1, 2).reshape(b, t, DIM))
        return x + g2 * self.mlp(self.n2(x) * (1 + s2) + b2)


class MaskedDiffusionLM(nn.Module):
    def __init__(self, n_layer=2):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, DIM)
        self.wpe = nn.Embedding(CTX, DIM)
        self.t_mlp = nn.Sequential(nn.Linear(1, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.blocks = nn.ModuleList([DiTBlock() for _ in range(n_layer)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)
        nn.init.zeros_(self.head.weight)

    def forward(self, z, t):
        c = self.t_mlp(t[:, None])
        x = self.wte(z) + self.wpe.weight[: z.size(1)]
        for blk in self.blocks:
            x = blk(x, c)
        logits = self.head(self.norm(x))
        logits[..., MASK_ID] = -1e6
        return logits


gen = torch.Generator().manual_seed(33)
perm = torch.randperm(MASK_ID, generator=gen)


def sample(bs):
    s = torch.randint(MASK_ID, (bs, CTX), generator=gen)
    keep = torch.rand(bs, CTX, generator=gen) < 0.9
    for i in range(1, CTX):
        s[:, i] = torch.where(keep[:, i], perm[s[:, i - 1]], s[:, i])
    return s


def nelbo(model, x):
    b = x.size(0)
    u = torch.rand(1, generator=gen) / b
    t = ((u + torch.arange(b) / b) % 1.0) * 0.95 + 0.05
    move = torch.rand(x.shape, generator=gen) < t[:, None]
    z = torch.where(move, MASK_ID, x)
    logits = model(z, t)
    ce = F.cross_entropy(logits.transpose(1, 2), x, reduction="none")
    return (ce * move / t[:, None]).sum() / x.numel()


model = MaskedDiffusionLM()
shadow = {k: v.clone() for k, v in model.state_dict().items()}
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.0)
val = sample(128)
N = 320
for step in range(N):
    for g in opt.param_groups:
        g["lr"] = 4e-3 * min(1.0, (step + 1) / 20, (N - step) / 100)
    loss = nelbo(model, sample(24))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    with torch.no_grad():
        for k, v in model.state_dict().items():
            shadow[k].lerp_(v, 0.05)
    if step % 40 == 0 or step == N - 1:
        live = {k: v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict(shadow)
        model.eval()
        with torch.no_grad():
            v = nelbo(model, val).item()
        model.load_state_dict(live)
        model.train()
        print(f"step {step} nelbo {loss.item():.4f} ema val nelbo {v:.4f}")
