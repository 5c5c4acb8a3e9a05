import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2024)
N_SYM, PROMPT, RESP = 16, 3, 6
SEP = N_SYM
VOCAB = N_SYM + 1
LENGTH = PROMPT + 1 + RESP
BETA = 0.1
SFT_STEPS, DPO_STEPS, BATCH = 300, 150, 32


def make_prompts(n):
    x = torch.randint(N_SYM, (n, PROMPT))
    return torch.cat([x, torch.full((n, 1), SEP)], 1)


def respond(prompts, direction):
    steps = torch.arange(1, RESP + 1)
    y = (prompts[:, PROMPT - 1, None] + direction[:, None] * steps) % N_SYM
    noise = torch.rand(y.shape) < 0.05
    return torch.where(noise, torch.randint_like(y, N_SYM), y)


class TinyLM(nn.Module):
    def __init__(self, d=48, heads=4, layers=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(LENGTH, d)
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        t = ids.size(1)
        mask = torch.full((t, t), float("-inf")).triu(1)
        return self.head(self.body(self.tok(ids) + self.pos.weight[:t], mask=mask))


def response_logps(model, prompts, responses):
    ids = torch.cat([prompts, responses], 1)
    logp = model(ids[:, :-1]).log_softmax(-1)
    tok = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return tok[:, PROMPT:].sum(1)


policy = TinyLM()

opt = torch.optim.AdamW(policy.parameters(), lr=4e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=SFT_STEPS, pct_start=0.1)
for step in range(SFT_STEPS):
    p = make_prompts(BATCH)
    r = respond(p, torch.randint(0, 2, (BATCH,)) * 2 - 1)
    loss = -response_logps(policy, p, r).mean() / RESP
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 50 == 0 or step == SFT_STEPS - 1:
        print(f"sft {step:3d}  loss per token {loss.item():.4f}")

reference = copy.deepcopy(policy).eval().requires_grad_(False)
opt = torch.optim.AdamW(policy.parameters(), lr=1.5e-4, weight_decay=0.0)
sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=DPO_STEPS)


@torch.no_grad()
def shares(model, n=300):
    ids = make_prompts(n)
    for _ in range(RESP):
        probs = model(ids)[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(probs, 1)], 1)
    resp = ids[:, PROMPT + 1:]
    up, down = ((ids[:, PROMPT - 1, None] + s * torch.arange(1, RESP + 1)) % N_SYM for s in (1, -1))
    rate = lambda want: ((resp == want).float().mean(1) > 0.5).float().mean().item()
    return f"up {rate(up):.3f} down {rate(down):.3f}"


print(f"samples before DPO: {shares(policy)}")
for step in range(DPO_STEPS):
    prompts = make_prompts(BATCH)
    chosen = respond(prompts, torch.ones(BATCH, dtype=torch.long))
    rejected = respond(prompts, -torch.ones(BATCH, dtype=torch.long))
    pp, rr = torch.cat([prompts, prompts]), torch.cat([chosen, rejected])
    pol_c, pol_r = response_logps(policy, pp, rr).chunk(2)
    with torch.no_grad():
        ref_c, ref_r = response_logps(reference, pp, rr).chunk(2)
    reward_c, reward_r = BETA * (pol_c - ref_c), BETA * (pol_r - ref_r)
    loss = -F.logsigmoid(reward_c - reward_r).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 25 == 0 or step == DPO_STEPS - 1:
        acc = (reward_c > reward_r).float().mean().item()
        print(f"dpo {step:3d}  loss {loss.item():.4f}  margin {(reward_c - reward_r).mean().item():.3f}  "
              f"accuracy {acc:.3f}  samples: {shares(policy)}")
