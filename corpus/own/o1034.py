import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(3)
PITCHES, DURS = 24, 4
VOCAB = PITCHES * DURS
D, HEADS, DEPTH, CTX, BS, STEPS = 64, 4, 2, 40, 16, 200


def orthogonalize(g, iters=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    flip = x.size(0) > x.size(1)
    if flip:
        x = x.T
    for _ in range(iters):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if flip else x


class Muon(torch.optim.Optimizer):
    def __init__(self, named_params, lr=0.02, momentum=0.95, adam_lr=2e-2, adam_betas=(0.8, 0.95), weight_decay=0.01):
        mats, rest = [], []
        for name, p in named_params:
            ratio = max(p.shape) / min(p.shape) if p.ndim == 2 else 0
            hidden = p.ndim == 2 and "emb" not in name and "head" not in name and ratio < 10
            (mats if hidden else rest).append(p)
        super().__init__(mats, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))
        self._adam = torch.optim.AdamW(rest, lr=adam_lr, betas=adam_betas, weight_decay=weight_decay)

    def state_dict(self):
        return {"muon": super().state_dict(), "adam": self._adam.state_dict()}

    def load_state_dict(self, sd):
        super().load_state_dict(sd["muon"])
        self._adam.load_state_dict(sd["adam"])

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if "buf" not in st:
                    st["buf"] = torch.zeros_like(p)
                st["buf"].lerp_(p.grad, 1 - group["momentum"])
                upd = orthogonalize(p.grad.lerp(st["buf"], group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(upd, alpha=-group["lr"] * max(1.0, p.size(0) / p.size(1)) ** 0.5)
        self._adam.step()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D)
        self.proj = nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (t.view(B, T, HEADS, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class MelodyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.emb_pos = nn.Parameter(0.02 * torch.randn(CTX, D))
        self.layers = nn.Sequential(*[Layer() for _ in range(DEPTH)])
        self.ln = nn.LayerNorm(D)
        self.head = nn.Linear(D, VOCAB, bias=False)

    def forward(self, t):
        return self.head(self.ln(self.layers(self.emb(t) + self.emb_pos[: t.size(1)])))


scale = torch.tensor([0, 2, 4, 5, 7, 9, 11, 12, 14, 16, 17, 19])
motifs = torch.stack([torch.randint(-2, 3, (7,)) for _ in range(5)])
rhythm = torch.tensor([0, 1, 1, 2, 0, 3, 1, 0])


def tunes(n, gen):
    out = torch.zeros(n, CTX + 1, dtype=torch.long)
    key = torch.randint(0, 5, (n,), generator=gen)
    deg = torch.randint(3, 9, (n,), generator=gen)
    mot = torch.randint(0, len(motifs), (n,), generator=gen)
    for t in range(CTX + 1):
        if t % 7 == 0 and t > 0:
            again = torch.rand(n, generator=gen) < 0.6
            mot = torch.where(again, mot, torch.randint(0, len(motifs), (n,), generator=gen))
        deg = (deg + motifs[mot, t % 7]).clamp(0, 11)
        off = torch.rand(n, generator=gen) < 0.04
        deg = torch.where(off, torch.randint(0, 12, (n,), generator=gen), deg)
        out[:, t] = (scale[deg] + key).clamp(max=PITCHES - 1) * DURS + rhythm[t % 8]
    return out


gen = torch.Generator().manual_seed(11)
held = tunes(128, torch.Generator().manual_seed(99))
net = MelodyModel()
opt = Muon(net.named_parameters())
print("parameters:", sum(p.numel() for p in net.parameters()))

for step in range(1, STEPS + 1):
    seq = tunes(BS, gen)
    logits = net(seq[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), seq[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 1:
        print(f"{step:4d}/{STEPS} loss={loss.item():.4f}")

net.eval()
with torch.no_grad():
    lg = net(held[:, :-1])
    nll = F.cross_entropy(lg.reshape(-1, VOCAB), held[:, 1:].reshape(-1)).item()
    acc = (lg.argmax(-1) == held[:, 1:]).float().mean().item()
print(f"held-out: nll={nll:.4f} next-note accuracy={acc:.3f}")
