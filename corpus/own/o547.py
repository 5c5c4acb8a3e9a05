import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)


class DiagonalScan(torch.autograd.Function):

    @staticmethod
    def forward(ctx, a, b):
        h = torch.empty_like(b)
        state = torch.zeros_like(b[:, 0])
        for t in range(b.size(1)):
            state = a[:, t] * state + b[:, t]
            h[:, t] = state
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx, grad_h):
        a, h = ctx.saved_tensors
        gb = torch.empty_like(grad_h)
        carry = torch.zeros_like(grad_h[:, 0])
        for t in range(grad_h.size(1) - 1, -1, -1):
            carry = grad_h[:, t] + carry
            gb[:, t] = carry
            carry = carry * a[:, t]
        prev = torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)
        return gb * prev, gb


x_chk = torch.rand(2, 5, 3, dtype=torch.double, requires_grad=True)
y_chk = torch.randn(2, 5, 3, dtype=torch.double, requires_grad=True)
assert torch.autograd.gradcheck(DiagonalScan.apply, (x_chk, y_chk))


class SelectiveSSM(nn.Module):

    def __init__(self, d, expand=2, state=4, conv=4):
        super().__init__()
        self.inner, self.state, self.conv = expand * d, state, conv
        self.inp = nn.Linear(d, 2 * self.inner, bias=False)
        self.dw = nn.Conv1d(self.inner, self.inner, conv, groups=self.inner)
        self.bc = nn.Linear(self.inner, 2 * state, bias=False)
        self.dt = nn.Linear(self.inner, self.inner)
        self.log_a = nn.Parameter(torch.log(torch.arange(1, state + 1).float()).repeat(self.inner, 1))
        self.skip = nn.Parameter(torch.ones(self.inner))
        self.out = nn.Linear(self.inner, d, bias=False)
        dt0 = torch.exp(torch.rand(self.inner) * (math.log(0.2) - math.log(0.01)) + math.log(0.01))
        with torch.no_grad():
            self.dt.weight.mul_(0.1)
            self.dt.bias.copy_(dt0 + torch.log(-torch.expm1(-dt0)))

    def forward(self, x):
        b, t, _ = x.shape
        u, gate = self.inp(x).chunk(2, -1)
        u = F.pad(u.transpose(1, 2), (self.conv - 1, 0))
        u = F.silu(self.dw(u).transpose(1, 2))
        Bt, Ct = self.bc(u).chunk(2, -1)
        dt = F.softplus(self.dt(u))
        decay = torch.exp(-dt.unsqueeze(-1) * self.log_a.exp())
        drive = (dt * u).unsqueeze(-1) * Bt.unsqueeze(2)
        h = DiagonalScan.apply(decay.flatten(2), drive.flatten(2)).view(b, t, self.inner, self.state)
        y = torch.einsum("btns,bts->btn", h, Ct) + self.skip * u
        return self.out(y * F.silu(gate))


class SSMLM(nn.Module):
    def __init__(self, vocab, d=40, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        nn.init.normal_(self.emb.weight, std=0.1)
        self.norms = nn.ModuleList(nn.RMSNorm(d) for _ in range(layers))
        self.mix = nn.ModuleList(SelectiveSSM(d) for _ in range(layers))
        self.nf, self.head = nn.RMSNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        x = self.emb(ids)
        for n, m in zip(self.norms, self.mix):
            x = x + m(n(x))
        return self.head(self.nf(x))


N_CONTENT, N_ITEMS, SPAN = 8, 3, 12
BLANK, GO = N_CONTENT, N_CONTENT + 1
VOCAB = N_CONTENT + 2


def make(n, g=None):
    seq = torch.full((n, SPAN + N_ITEMS), BLANK)
    where = torch.rand(n, SPAN, generator=g).argsort(1)[:, :N_ITEMS].sort(1).values
    what = torch.randint(N_CONTENT, (n, N_ITEMS), generator=g)
    seq.scatter_(1, where, what)
    seq[:, SPAN:] = GO
    return seq, what


STEPS, BATCH = 300, 32
model = SSMLM(VOCAB)
nodecay = [p for n, p in model.named_parameters() if p.ndim < 2 or n.endswith("log_a")]
ids_nd = {id(p) for p in nodecay}
opt = torch.optim.AdamW([{"params": [p for p in model.parameters() if id(p) not in ids_nd], "weight_decay": 0.01},
                         {"params": nodecay, "weight_decay": 0.0}], lr=5e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 5e-3, total_steps=STEPS, pct_start=0.1)
val_x, val_y = make(256, torch.Generator().manual_seed(4))

for step in range(STEPS):
    x, y = make(BATCH)
    loss = F.cross_entropy(model(x)[:, SPAN:].flatten(0, 1), y.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 50 == 0 or step == STEPS - 1:
        with torch.no_grad():
            acc = (model(val_x)[:, SPAN:].argmax(-1) == val_y).float().mean().item()
        print(f"step {step:3d} loss {loss.item():.4f} val token accuracy {acc:.3f}")
