import torch
import torch.nn as nn
import torch.nn.functional as F

V, L, D, B, STEPS = 20, 12, 48, 32, 250
MASK = V


def corpus(n, g):
    a = torch.randint(0, V, (n, 1), generator=g)
    s = torch.tensor([1, 3])[torch.randint(0, 2, (n, 1), generator=g)]
    return (a + s * torch.arange(L)) % V


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V + 1, D)
        self.pos = nn.Parameter(torch.randn(L, D) * 0.3)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 2 * D, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(D)
        self.out = nn.Linear(D, V)

    def forward(self, z):
        h = self.tok(z) + self.pos
        for b in self.blocks:
            h = b(h)
        return self.out(self.norm(h))


def elbo(model, x, g):
    t = (torch.arange(len(x)) + torch.rand(1, generator=g)) / len(x)
    t = t.clamp(0.1, 1.0)[:, None]
    hide = torch.rand(x.shape, generator=g) < t
    logits = model(torch.where(hide, MASK, x))
    nll = F.cross_entropy(logits.transpose(1, 2), x, reduction="none")
    return (nll * hide / t).sum() / x.numel()


def main():
    torch.manual_seed(71)
    g = torch.Generator().manual_seed(72)
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=STEPS, pct_start=0.15)
    held = corpus(96, g)
    for step in range(STEPS):
        loss = elbo(model, corpus(B, g), g)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 25 == 0 or step == STEPS - 1:
            with torch.no_grad():
                v = elbo(model, held, torch.Generator().manual_seed(0)).item()
            print(f"step {step:4d} loss {loss.item():.4f} held {v:.4f}")


main()
