import math, random
import torch, torch.nn as nn, torch.nn.functional as F

SEED, V, L = (0, 14, 6)
BOS, SEP, EOS, PAD = (10, 11, 12, 13)
torch.manual_seed(SEED)
random.seed(SEED)
torch.set_num_threads(1)


def prompt():
    return random.sample(range(10), L)


def collate(pairs):
    ids = torch.tensor([[BOS] + p + [SEP] + a + [EOS] for p, a in pairs])
    mask = torch.zeros_like(ids, dtype=torch.float)
    mask[:, L + 2 :] = 1
    return (ids, mask)


def sft_batch(n):
    out = []
    for _ in range(n):
        p = prompt()
        out.append((p, sorted(p, reverse=random.random() < 0.5)))
    return collate(out)


def pref_batch(n):
    ps = [prompt() for _ in range(n)]
    flip = [random.random() < 0.1 for _ in ps]
    good = collate([(p, sorted(p, reverse=f)) for p, f in zip(ps, flip)])
    bad = collate([(p, sorted(p, reverse=not f)) for p, f in zip(ps, flip)])
    return (good, bad)


class Attn(nn.Module):
    def __init__(self, d, h, kv):
        super().__init__()
        self.h, self.kv, self.hd = (h, kv, d // h)
        self.wq = nn.Linear(d, h * self.hd, bias=False)
        self.wkv = nn.Linear(d, 2 * kv * self.hd, bias=False)
        self.wo = nn.Linear(d, d, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, self.h, self.hd).transpose(1, 2)
        k, v = self.wkv(x).view(B, T, 2, self.kv, self.hd).permute(2, 0, 3, 1, 4)
        rep = self.h // self.kv
        k, v = (k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1))
        return self.wo(
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(B, T, -1)
        )


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = (nn.RMSNorm(d), nn.RMSNorm(d))
        self.attn = Attn(d, 4, 2)
        self.w1, self.w2 = (nn.Linear(d, 4 * d), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.w2(F.gelu(self.w1(self.n2(x))))


class Policy(nn.Module):
    def __init__(self, d=64, depth=2):
        super().__init__()
        self.tok = nn.Embedding(V, d)
        self.pos = nn.Parameter(torch.randn(2 * L + 3, d) * 0.02)
        self.blocks = nn.ModuleList((Block(d) for _ in range(depth)))
        self.norm = nn.RMSNorm(d)
        self.head = nn.Linear(d, V, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos[: ids.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def answer_logp(model, ids, mask):
    logp = model(ids[:, :-1]).log_softmax(-1)
    return (logp.gather(-1, ids[:, 1:, None]).squeeze(-1) * mask[:, 1:]).sum(-1)


@torch.no_grad()
def sample_report(model, n=300):
    ps = [prompt() for _ in range(n)]
    ids = torch.tensor([[BOS] + p + [SEP] for p in ps])
    for _ in range(L + 1):
        nxt = torch.multinomial(model(ids)[:, -1].softmax(-1), 1)
        ids = torch.cat([ids, nxt], 1)
    up = down = 0
    for p, a in zip(ps, ids[:, L + 2 :].tolist()):
        up += a == sorted(p) + [EOS]
        down += a == sorted(p, reverse=True) + [EOS]
    return (up / n, down / n)


policy = Policy()
opt = torch.optim.AdamW(policy.parameters(), lr=0.003, weight_decay=0.01)
S1 = 400
for step in range(S1):
    for g in opt.param_groups:
        g["lr"] = 0.003 * min(1, (step + 1) / 40) * (0.5 + 0.5 * math.cos(math.pi * step / S1))
    ids, mask = sft_batch(48)
    loss = -(answer_logp(policy, ids, mask).sum() / mask.sum())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    if step % 75 == 0:
        print(f"sft {step} loss {loss.item():.4f}")
print("after sft: ascending %.3f descending %.3f" % sample_report(policy))
with torch.device("meta"):
    ref = Policy()
ref.load_state_dict(policy.state_dict(), assign=True)
ref.eval()
ref.requires_grad_(False)
beta, S2 = (0.5, 160)
opt = torch.optim.AdamW(policy.parameters(), lr=0.0002, betas=(0.9, 0.98), weight_decay=0.0)
for step in range(S2):
    for g in opt.param_groups:
        g["lr"] = 0.0002 * min(1, (step + 1) / 20)
    (gi, gm), (bi, bm) = pref_batch(40)
    with torch.no_grad():
        ref_good, ref_bad = (answer_logp(ref, gi, gm), answer_logp(ref, bi, bm))
    good, bad = (answer_logp(policy, gi, gm), answer_logp(policy, bi, bm))
    r_good, r_bad = (beta * (good - ref_good), beta * (bad - ref_bad))
    loss = -F.logsigmoid(r_good - r_bad).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == S2 - 1:
        margin = (r_good - r_bad).detach()
        print(
            f"dpo {step} loss {loss.item():.4f} margin {margin.mean():.3f} acc {(margin > 0).float().mean():.2f} logp good {good.mean().item():.2f} bad {bad.mean().item():.2f}"
        )
print("after dpo: ascending %.3f descending %.3f" % sample_report(policy))
