import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(64)

VOCAB, CTX, DIM, HEADS, LOOPS = 28, 28, 48, 4, 3


class Mixture(nn.Module):
    def __init__(self, dim, n_experts=4, k=1, hidden=64, gamma=0.01):
        super().__init__()
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.register_buffer("expert_bias", torch.zeros(n_experts))
        self.w1 = nn.Parameter(torch.randn(n_experts, dim, hidden) * dim**-0.5)
        self.w2 = nn.Parameter(torch.zeros(n_experts, hidden, dim))
        self.k, self.gamma, self.n = k, gamma, n_experts

    def forward(self, x):
        scores = self.gate(x).sigmoid()
        idx = (scores + self.expert_bias).topk(self.k, dim=-1).indices
        sel = torch.zeros_like(scores).scatter(-1, idx, 1.0)
        w = scores * sel
        h = F.silu(torch.einsum("btd,edh->bteh", x, self.w1)) * w.unsqueeze(-1)
        y = torch.einsum("bteh,ehd->btd", h, self.w2)
        if self.training:
            with torch.no_grad():
                load = sel.mean((0, 1))
                self.expert_bias.add_(self.gamma * torch.sign(load.mean() - load))
        return y


class Core(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.inject = nn.Linear(2 * DIM, DIM, bias=False)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.moe = Mixture(DIM)

    def forward(self, s, e):
        x = self.inject(torch.cat([s, e], -1))
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.moe(self.n2(x))


class RecurrentDepthLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, DIM)
        self.wpe = nn.Parameter(torch.randn(CTX, DIM) * 0.02)
        self.core = Core()
        self.norm = nn.RMSNorm(DIM)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)
        nn.init.normal_(self.wte.weight, std=DIM**-0.5)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets=None):
        e = self.wte(idx) * DIM**0.5 + self.wpe[: idx.size(1)]
        s = torch.randn_like(e) * 0.02 if self.training else torch.zeros_like(e)
        for i in range(LOOPS):
            s = self.core(s, e)
        logits = self.lm_head(self.norm(s))
        logits = 15 * torch.tanh(logits / 15)
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1))


gen = torch.Generator().manual_seed(21)
table = torch.randint(VOCAB, (VOCAB, 4), generator=gen)


def get_batch(bs=12):
    s = torch.randint(VOCAB, (bs, CTX + 1), generator=gen)
    noise = torch.rand(bs, CTX + 1, generator=gen) < 0.1
    for i in range(2, CTX + 1):
        s[:, i] = torch.where(noise[:, i], s[:, i], table[s[:, i - 1], s[:, i - 2] % 4])
    return s[:, :-1], s[:, 1:]


model = RecurrentDepthLM()
params = dict(model.named_parameters())
opt = torch.optim.AdamW(
    [
        {"params": [p for n, p in params.items() if p.ndim >= 2 and "wte" not in n], "weight_decay": 0.05},
        {"params": [p for n, p in params.items() if p.ndim < 2 or "wte" in n], "weight_decay": 0.0},
    ],
    lr=3e-3, betas=(0.9, 0.95),
)
STEPS = 260
for step in range(STEPS):
    lr = 3e-3 * min(1, (step + 1) / 15, (STEPS - step) / 80)
    for g in opt.param_groups:
        g["lr"] = lr
    loss = model(*get_batch())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step} loss {loss.item():.4f} bias {[round(v, 2) for v in model.core.moe.expert_bias.tolist()]}")
