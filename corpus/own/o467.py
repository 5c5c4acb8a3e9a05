import torch
import torch.nn as nn

N_ACT, N_OBS, HIST = 64, 20, 8


class Logs:
    """An expert that reacts to the current and previous observation."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.table = torch.randint(0, N_ACT, (N_OBS, 4), generator=self.gen)

    def draw(self, n):
        obs = torch.randint(0, N_OBS, (n, HIST), generator=self.gen)
        before = torch.cat([obs[:, :1], obs[:, :-1]], 1)
        act = self.table[obs, before % 4]
        slip = torch.rand(act.shape, generator=self.gen) < 0.05
        return obs, torch.where(slip, torch.randint(0, N_ACT, act.shape, generator=self.gen), act)


class PolicyBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln_a, self.ln_b = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mix = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x, blocked):
        z = self.ln_a(x)
        x = x + self.mix(z, z, z, attn_mask=blocked, need_weights=False)[0]
        return x + self.mlp(self.ln_b(x))


class Policy(nn.Module):
    def __init__(self, d=64, heads=4, depth=2):
        super().__init__()
        self.obs = nn.Embedding(N_OBS, d)
        self.time = nn.Parameter(torch.randn(HIST, d) * 0.1)
        self.blocks = nn.ModuleList(PolicyBlock(d, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.act = nn.Linear(d, N_ACT)
        self.register_buffer("blocked", torch.ones(HIST, HIST).triu(1).bool())

    def forward(self, obs):
        h = self.obs(obs) + self.time
        for b in self.blocks:
            h = b(h, self.blocked)
        score = self.act(self.norm(h))
        weight = torch.exp(score - score.amax(-1, keepdim=True))
        return weight / weight.sum(-1, keepdim=True)


def imitation_loss(out, act):
    picked = out.gather(-1, act.unsqueeze(-1)).squeeze(-1)
    return (torch.logsumexp(out, -1) - picked).mean()


def train(seed=33, steps=420, bs=48):
    torch.manual_seed(seed)
    logs = Logs(seed)
    policy = Policy()
    opt = torch.optim.AdamW(policy.parameters(), lr=1.5e-3, weight_decay=1e-3)
    for step in range(steps):
        obs, act = logs.draw(bs)
        loss = imitation_loss(policy(obs), act)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step={step} bc_loss={loss.item():.4f}", flush=True)
    obs, act = logs.draw(512)
    with torch.no_grad():
        agree = (policy(obs).argmax(-1) == act).float().mean().item()
    print(f"agreement with the expert on new logs: {agree:.4f}")


train()
