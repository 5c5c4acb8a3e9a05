import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

torch.manual_seed(11)

VOCAB, CLASSES, LENGTH = 16, 6, 20
MARK = 9
D_MODEL, D_INNER, D_STATE, LAYERS = 32, 48, 4, 1
BATCH, STEPS, LR = 32, 400, 1e-2


class SelectiveScan(torch.autograd.Function):

    @staticmethod
    def forward(ctx, decay, drive):
        h = torch.zeros_like(drive[:, 0])
        out = []
        for t in range(drive.shape[1]):
            h = decay[:, t] * h + drive[:, t]
            out.append(h)
        states = torch.stack(out, 1)
        ctx.save_for_backward(decay, states)
        return states

    @staticmethod
    def backward(ctx, grad):
        decay, states = ctx.saved_tensors
        g_decay = torch.empty_like(decay)
        g_drive = torch.empty_like(decay)
        carry = torch.zeros_like(grad[:, 0])
        for t in range(grad.shape[1] - 1, -1, -1):
            carry = carry + grad[:, t]
            g_drive[:, t] = carry
            g_decay[:, t] = carry * states[:, t]
            carry = carry * decay[:, t]
        return g_decay, g_drive


class SSMBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D_MODEL)
        self.in_proj = nn.Linear(D_MODEL, 2 * D_INNER)
        self.conv = nn.Conv1d(D_INNER, D_INNER, 2)
        self.to_dt = nn.Linear(D_INNER, D_INNER)
        self.to_bc = nn.Linear(D_INNER, 2 * D_STATE)
        self.a_log = nn.Parameter(torch.log(torch.arange(1, D_STATE + 1).float()).repeat(D_INNER, 1))
        self.skip = nn.Parameter(torch.ones(D_INNER))
        self.out_proj = nn.Linear(D_INNER, D_MODEL)
        dt = torch.exp(torch.rand(D_INNER) * (math.log(0.3) - math.log(0.02)) + math.log(0.02))
        with torch.no_grad():
            self.to_dt.bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    def forward(self, x):
        u, gate = self.in_proj(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(F.pad(u.transpose(1, 2), (1, 0))).transpose(1, 2))
        dt = F.softplus(self.to_dt(u))
        b, c = self.to_bc(u).chunk(2, -1)
        decay = torch.exp(-dt.unsqueeze(-1) * self.a_log.exp())
        drive = (dt * u).unsqueeze(-1) * b.unsqueeze(2)
        h = SelectiveScan.apply(decay, drive)
        y = (h * c.unsqueeze(2)).sum(-1) + self.skip * u
        return x + self.out_proj(y * F.silu(gate))


class EventModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D_MODEL)
        self.blocks = nn.ModuleList([SSMBlock() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(D_MODEL)
        self.head = nn.Linear(D_MODEL, CLASSES)

    def forward(self, tokens):
        x = self.emb(tokens)
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x[:, -1]))


def make_batch(n, gen):
    x = torch.randint(0, CLASSES, (n, LENGTH), generator=gen)
    filler = torch.randint(MARK + 1, VOCAB, (n, LENGTH), generator=gen)
    x = torch.where(torch.rand(n, LENGTH, generator=gen) < 0.5, x, filler)
    pos = torch.randint(0, LENGTH - 4, (n,), generator=gen)
    val = torch.randint(0, CLASSES, (n,), generator=gen)
    rows = torch.arange(n)
    x[rows, pos] = MARK
    x[rows, pos + 1] = val
    return x, val


def main():
    gen = torch.Generator().manual_seed(5)
    model = EventModel()
    params = dict(model.named_parameters())

    def loss_fn(p, x, y):
        logits = functional_call(model, p, (x,))
        return F.cross_entropy(logits, y), logits

    opt = torch.optim.AdamW(params.values(), lr=LR, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, LR, total_steps=STEPS, pct_start=0.1)
    held = make_batch(512, torch.Generator().manual_seed(99))
    for step in range(STEPS):
        x, y = make_batch(BATCH, gen)
        loss, _ = loss_fn(params, x, y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params.values(), 1.0)
        opt.step()
        sched.step()
        if step % 30 == 0 or step == STEPS - 1:
            with torch.no_grad():
                vl, logits = loss_fn(params, *held)
            acc = (logits.argmax(-1) == held[1]).float().mean()
            print(f"step {step:4d} loss {loss.item():.4f} held {vl.item():.4f} acc {acc.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
