import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
V, L, D = 60, 20, 64
word_value = torch.randn(V) * 0.5
word_value[torch.rand(V) < 0.5] = 0.0


def true_reward(tok, length):
    m = torch.arange(L) < length[:, None]
    return (word_value[tok] * m).sum(1)


def sample(n):
    tok = torch.randint(1, V, (n, L))
    length = torch.randint(8, L + 1, (n,))
    tok[torch.arange(L) >= length[:, None]] = 0
    return tok, length


def comparisons(n):
    a, la = sample(n)
    b, lb = sample(n)
    margin = true_reward(a, la) - true_reward(b, lb)
    p = torch.sigmoid(margin * 0.7)
    first = torch.rand(n) < p
    w = lambda x, y: torch.where(first.view(-1, *[1] * (x.dim() - 1)), x, y)
    entropy = -(p * p.clamp_min(1e-6).log() + (1 - p) * (1 - p).clamp_min(1e-6).log())
    return w(a, b), w(la, lb), w(b, a), w(lb, la), entropy.mean().item()


class Reward(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.emb.weight.requires_grad_(False)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(D)
        self.v = nn.Linear(D, 1, bias=False)
        nn.init.zeros_(self.v.weight)

    def forward(self, tok, length):
        pad = torch.arange(L) >= length[:, None]
        h = self.body(self.emb(tok), src_key_padding_mask=pad)
        h = self.norm(h).masked_fill(pad[..., None], 0.0)
        return self.v(h).sum(1).squeeze(-1)


model = Reward()
trainable = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(trainable, lr=1e-3, weight_decay=0.0, betas=(0.9, 0.95))
sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=400, power=1.0)

for step in range(400):
    c, lc, r, lr_, ent = comparisons(24)
    out = model(torch.cat([c, r]), torch.cat([lc, lr_]))
    rc, rr = out.chunk(2)
    pref = -F.logsigmoid(rc - rr).mean()
    loss = pref + 0.002 * (rc + rr).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(trainable, 1.0)
    opt.step()
    sched.step()
    if step % 20 == 0:
        print(f"step {step:3d}  loss {pref.item():.4f}  acc {(rc > rr).float().mean():.2f}  "
              f"margin {(rc - rr).mean():+.2f}  label entropy {ent:.3f}", flush=True)

model.eval()
with torch.no_grad():
    t, n = sample(600)
    got, want = model(t, n), true_reward(t, n)
    corr = torch.corrcoef(torch.stack([got, want]))[0, 1].item()
    c, lc, r, lr_, ent = comparisons(1000)
    nll = -F.logsigmoid(model(c, lc) - model(r, lr_)).mean().item()
print(f"correlation with true reward {corr:.3f}; fresh loss {nll:.4f}, label entropy {ent:.4f}")
