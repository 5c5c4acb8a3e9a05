import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

V, T, D, NH, NKV, E, TOPK, FF = 24, 24, 48, 4, 2, 4, 2, 48


def zeropower_via_newtonschulz5(G, steps=5):
    a, b, c = (3.4445, -4.7750, 2.0315)
    X = G
    if G.size(-2) > G.size(-1):
        X = X.mT
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        A = X @ X.mT
        B = b * A + c * A @ A
        X = a * X + B @ X
    if G.size(-2) > G.size(-1):
        X = X.mT
    return X


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, weight_decay=0.0, momentum=0.95):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                buf = state["momentum_buffer"]
                buf.lerp_(p.grad, 1 - group["momentum"])
                u = zeropower_via_newtonschulz5(p.grad.lerp(buf, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(u, alpha=-group["lr"] * max(1, p.size(-2) / p.size(-1)) ** 0.5)


def rope_tables(head_dim, seq_len, base=10000.0):
    inv = 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)
    ang = torch.outer(torch.arange(seq_len).float(), inv)
    return ang.cos(), ang.sin()


def apply_rotary_emb(x, cos, sin):
    d = x.shape[-1] // 2
    x1, x2 = x[..., :d], x[..., d:]
    return torch.cat([x1 * cos + x2 * sin, -x1 * sin + x2 * cos], dim=-1)


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


class GQA(nn.Module):
    def __init__(self):
        super().__init__()
        hd = D // NH
        self.wq = nn.Linear(D, NH * hd, bias=False)
        self.wk = nn.Linear(D, NKV * hd, bias=False)
        self.wv = nn.Linear(D, NKV * hd, bias=False)
        self.wo = nn.Linear(D, D, bias=False)
        self.wo.weight.data.zero_()

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, NH, -1).transpose(1, 2)
        k = self.wk(x).view(b, t, NKV, -1).transpose(1, 2)
        v = self.wv(x).view(b, t, NKV, -1).transpose(1, 2)
        q, k = norm(apply_rotary_emb(q, cos, sin)), norm(apply_rotary_emb(k, cos, sin))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, E, bias=False)
        self.w_in = nn.Parameter(torch.randn(E, D, FF) * D**-0.5)
        self.w_out = nn.Parameter(torch.randn(E, FF, D) * 0.2 * FF**-0.5)

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        w, idx = probs.topk(TOPK, dim=-1)
        w = w / w.sum(-1, keepdim=True)
        gates = torch.zeros_like(probs).scatter(-1, idx, w)
        h = torch.einsum("btd,edf->ebtf", x, self.w_in)
        o = torch.einsum("ebtf,efd->ebtd", F.relu(h).square(), self.w_out)
        y = torch.einsum("ebtd,bte->btd", o, gates)
        load = (gates > 0).float().mean((0, 1)) / TOPK
        aux = E * (load * probs.mean((0, 1))).sum()
        return y, aux


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = GQA()
        self.moe = MoE()

    def forward(self, x, cos, sin):
        x = x + self.attn(norm(x), cos, sin)
        y, aux = self.moe(norm(x))
        return x + y, aux


class Transformer(nn.Module):
    def __init__(self, n_layer=2):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.blocks = nn.ModuleList([Block() for _ in range(n_layer)])
        self.lm_head = nn.Linear(D, V, bias=False)
        self.lm_head.weight.data.zero_()
        cos, sin = rope_tables(D // NH, T)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, idx, targets):
        x = norm(self.embed(idx))
        aux = 0.0
        for b in self.blocks:
            x, a = b(x, self.cos, self.sin)
            aux = aux + a
        logits = self.lm_head(norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), aux / len(self.blocks)


g = torch.Generator().manual_seed(3)
table = torch.randint(V, (V, V), generator=g)


def sample(n):
    s = torch.randint(V, (n, T + 1), generator=g)
    noise = torch.rand(n, T + 1, generator=g) < 0.15
    for i in range(2, T + 1):
        s[:, i] = torch.where(noise[:, i], s[:, i], table[s[:, i - 1], s[:, i - 2]])
    return s[:, :-1], s[:, 1:]


model = Transformer()
hidden_matrix_params = [p for n, p in model.blocks.named_parameters() if p.ndim >= 2 and "router" not in n]
router_params = [p for n, p in model.blocks.named_parameters() if "router" in n]
embed_params = list(model.embed.parameters())
head_params = list(model.lm_head.parameters())
scalar_params = [p for p in model.parameters() if p.ndim < 2]
adam_groups = [
    dict(params=head_params, lr=4e-3),
    dict(params=embed_params, lr=1e-2),
    dict(params=router_params + scalar_params, lr=3e-3),
]
optimizer1 = torch.optim.AdamW(adam_groups, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0)
optimizer2 = Muon(hidden_matrix_params, lr=0.02, momentum=0.95, weight_decay=0.01)
optimizers = [optimizer1, optimizer2]
for opt in optimizers:
    for group in opt.param_groups:
        group["initial_lr"] = group["lr"]

num_iterations, cooldown_frac = 240, 0.4


def lr_mul(step):
    x = step / num_iterations
    return 1.0 if x < 1 - cooldown_frac else (1 - x) / cooldown_frac


for step in range(num_iterations):
    x, y = sample(24)
    ce, aux = model(x, y)
    (ce + 0.01 * aux).backward()
    for opt in optimizers:
        for group in opt.param_groups:
            group["lr"] = group["initial_lr"] * lr_mul(step)
        opt.step()
    model.zero_grad(set_to_none=True)
    if step % 20 == 0 or step == num_iterations - 1:
        print(f"step {step:4d} | ce {ce.item():.4f} | aux {aux.item():.3f}")
