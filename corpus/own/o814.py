import torch, torch.nn as nn, torch.nn.functional as F
import copy

torch.manual_seed(2)
torch.set_num_threads(1)
N_DIG, LEN, GROUP, PROMPTS = 4, 6, 12, 16
MAXS = (N_DIG - 1) * LEN


class Policy(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.p = nn.Embedding(MAXS + 1, d)
        self.t = nn.Embedding(N_DIG + 1, d)
        self.cell = nn.GRUCell(d, d)
        self.out = nn.Linear(d, N_DIG)

    def roll(self, prompt, actions=None):
        h = self.p(prompt)
        prev = torch.full_like(prompt, N_DIG)
        acts, lps = [], []
        for i in range(LEN):
            h = self.cell(self.t(prev), h)
            lp = F.log_softmax(self.out(h), -1)
            a = torch.multinomial(lp.exp(), 1).squeeze(1) if actions is None else actions[:, i]
            acts.append(a)
            lps.append(lp.gather(1, a[:, None]).squeeze(1))
            prev = a
        return torch.stack(acts, 1), torch.stack(lps, 1)


def reward(prompt, acts):
    gap = (acts.sum(1) - prompt).abs().float()
    return -gap / MAXS + (gap == 0).float()


policy = Policy()
ref = copy.deepcopy(policy).eval().requires_grad_(False)
opt = torch.optim.AdamW(policy.parameters(), lr=4e-3, weight_decay=0.0)
CLIP, BETA, INNER = 0.2, 0.002, 2


@torch.no_grad()
def exact():
    p = torch.arange(2, MAXS - 1).repeat_interleave(20)
    a, _ = policy.roll(p)
    return (a.sum(1) == p).float().mean().item()


print(f"exact before {exact():.3f}")
for it in range(120):
    prompt = torch.randint(2, MAXS - 1, (PROMPTS,)).repeat_interleave(GROUP)
    with torch.no_grad():
        acts, old = policy.roll(prompt)
        _, rlp = ref.roll(prompt, acts)
    r = reward(prompt, acts).view(PROMPTS, GROUP)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    logged = []
    for _ in range(INNER):
        _, lp = policy.roll(prompt, acts)
        ratio = (lp - old).exp()
        pg = -torch.minimum(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv)
        kl = (rlp - lp).exp() - (rlp - lp) - 1
        loss = (pg + BETA * kl).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        logged.append(loss.item())
    if it % 10 == 0 or it == 119:
        same = (r.std(1) == 0).float().mean().item()
        print(f"it {it:3d} loss {logged[0]:+.5f} -> {logged[-1]:+.5f} reward {r.mean():.3f} "
              f"kl {kl.mean():.3f} flat groups {same:.2f}")
print(f"exact after {exact():.3f}")
