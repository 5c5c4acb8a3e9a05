import torch
from torch import nn
import torch.nn.functional as F

SYMBOLS, LENGTH, DIM, ROUNDS = 14, 10, 64, 3
STEPS, PEAK = 260, 2e-3


def strings(n, gen):
    """target: the string read backwards, every symbol moved on by its right neighbour's parity"""
    x = torch.randint(0, SYMBOLS, (n, LENGTH), generator=gen)
    y = (x.flip(1) + x % 2) % SYMBOLS
    return x, y


class Universal(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(SYMBOLS, DIM)
        self.pos = nn.Parameter(0.3 * torch.randn(LENGTH, DIM))
        block = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.rounds = nn.ModuleList([block] * ROUNDS)
        self.round_code = nn.Parameter(0.02 * torch.randn(ROUNDS, DIM))
        self.out = nn.Linear(DIM, SYMBOLS)

    def forward(self, x):
        h = self.emb(x) + self.pos
        for code, block in zip(self.round_code, self.rounds):
            h = block(h + code)
        return self.out(F.layer_norm(h, h.shape[-1:]))


def rate(step, warm=20):
    return PEAK * min(1.0, (step + 1) / warm)


def main(seed=5):
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    net = Universal()
    print("unique parameters:", sum(p.numel() for p in net.parameters()))
    xs, ys = strings(6000, gen)
    xv, yv = strings(500, gen)
    opt = torch.optim.AdamW(net.parameters(), lr=PEAK, weight_decay=0.01)
    for step in range(STEPS):
        for group in opt.param_groups:
            group["lr"] = rate(step)
        i = torch.randint(0, len(xs), (48,))
        loss = F.cross_entropy(net(xs[i]).transpose(1, 2), ys[i])
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if step % 13 == 0 or step == STEPS - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    with torch.no_grad():
        print(f"held-out accuracy {(net(xv).argmax(-1) == yv).float().mean().item():.4f}")


if __name__ == "__main__":
    main()
