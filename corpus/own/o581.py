import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=240)
ap.add_argument("--pairs", type=int, default=40)
ap.add_argument("--lr", type=float, default=1e-3)
ap.add_argument("--max-norm", type=float, default=0.1)
ap.add_argument("--slip", type=float, default=0.2)
args = ap.parse_args()

torch.manual_seed(77)
VOCAB, MAXLEN, DIM = 40, 18, 64
worth = torch.zeros(VOCAB)
worth[5:12], worth[12:19] = 1.0, -1.0


def answers(n):
    length = torch.randint(8, MAXLEN + 1, (n,))
    tok = torch.randint(1, VOCAB, (n, MAXLEN))
    tok = tok * (torch.arange(MAXLEN) < length[:, None])
    return tok


def quality(tok):
    twice = ((tok[:, 1:] == tok[:, :-1]) & (tok[:, 1:] > 0)).sum(1)
    return worth[tok].sum(1) - 2.0 * twice


def comparisons(n, slip):
    a, b = answers(3 * n), answers(3 * n)
    gap = quality(a) - quality(b)
    use = gap.abs().topk(n * 2).indices[torch.randperm(2 * n)[:n]]
    a, b, gap = a[use], b[use], gap[use]
    first = (gap > 0) ^ (torch.rand(n) < slip)
    win = torch.where(first[:, None], a, b)
    lose = torch.where(first[:, None], b, a)
    return win, lose


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM, padding_idx=0)
        self.pos = nn.Embedding(MAXLEN, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.score = nn.Linear(DIM, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, t):
        pad = t == 0
        h = self.enc(self.tok(t) + self.pos.weight, src_key_padding_mask=pad)
        h = h.masked_fill(pad[..., None], 0.0).sum(1) / (~pad).sum(1, keepdim=True).sqrt()
        return self.score(h).squeeze(-1)


def preference_loss(rm, win, lose):
    r = rm(torch.cat([win, lose]))
    margin = r[: len(win)] - r[len(win):]
    return F.softplus(-margin).mean(), (margin > 0).float().mean()


rm = RewardModel()
opt = torch.optim.AdamW(rm.parameters(), lr=args.lr, weight_decay=0.01)
clean = comparisons(400, 0.0)
ema = None
for step in range(args.steps):
    rm.train()
    loss, acc = preference_loss(rm, *comparisons(args.pairs, args.slip))
    opt.param_groups[0]["lr"] = args.lr * (1 - 0.95 * step / args.steps)
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(rm.parameters(), args.max_norm)
    opt.step()
    ema = loss.item() if ema is None else 0.9 * ema + 0.1 * loss.item()
    if step % 24 == 0 or step == args.steps - 1:
        rm.eval()
        with torch.no_grad():
            cl, ca = preference_loss(rm, *clean)
        print(f"step {step:3d} loss {loss.item():.4f} (avg {ema:.4f}) grad {norm.item():.2f} | clean pairs: loss {cl.item():.4f} acc {ca.item():.3f}", flush=True)
