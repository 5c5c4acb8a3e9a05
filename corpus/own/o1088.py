import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--context", type=int, default=10)
ap.add_argument("--dim", type=int, default=48)
ap.add_argument("--lr", type=float, default=2e-3)
ap.add_argument("--weight-decay", type=float, default=1.0)
ap.add_argument("--updates", type=int, default=260)
ap.add_argument("--batch", type=int, default=48)
ap.add_argument("--seed", type=int, default=9)
cfg = ap.parse_args()
torch.manual_seed(cfg.seed)

SIZE, ACTIONS = 9, 3
STEP = torch.tensor([-1, 0, 1])


def behave(n, skill):
    pos = torch.randint(SIZE, (n,))
    goal = torch.randint(SIZE, (n, 1)).expand(n, cfg.context)
    states, actions, rewards = [], [], []
    for t in range(cfg.context):
        best = torch.sign(goal[:, t] - pos) + 1
        rand = torch.randint(ACTIONS, (n,))
        act = torch.where(torch.rand(n) < skill, best, rand)
        states.append(torch.stack([pos, goal[:, t]], -1))
        actions.append(act)
        pos = (pos + STEP[act]).clamp(0, SIZE - 1)
        rewards.append((pos == goal[:, t]).float())
    rew = torch.stack(rewards, 1)
    togo = rew.flip(1).cumsum(1).flip(1)
    return torch.stack(states, 1), torch.stack(actions, 1), togo


class DecisionTransformer(nn.Module):
    def __init__(self, dim, context, depth=2):
        super().__init__()
        self.state = nn.ModuleList([nn.Embedding(SIZE, dim), nn.Embedding(SIZE, dim)])
        self.action = nn.Embedding(ACTIONS, dim)
        self.ret = nn.Linear(1, dim)
        self.time = nn.Embedding(context, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.policy = nn.Linear(dim, ACTIONS)

    def forward(self, states, actions, togo):
        b, t = actions.shape
        when = self.time.weight[:t]
        r = self.ret(togo[..., None] / cfg.context) + when
        s = self.state[0](states[..., 0]) + self.state[1](states[..., 1]) + when
        a = self.action(actions) + when
        x = torch.stack([r, s, a], 2).reshape(b, 3 * t, -1)
        mask = torch.ones(3 * t, 3 * t, dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.policy(self.norm(x)[:, 1::3])


@torch.no_grad()
def rollout(model, n=200):
    model.eval()
    pos, goal = torch.randint(SIZE, (n,)), torch.randint(SIZE, (n,))
    states, actions, togo = [], [], []
    want, score = (cfg.context - (goal - pos).abs() + 1).clamp(max=cfg.context).float(), torch.zeros(n)
    for _ in range(cfg.context):
        states.append(torch.stack([pos, goal], -1))
        togo.append(want - score)
        actions.append(torch.zeros(n, dtype=torch.long))
        logits = model(torch.stack(states, 1), torch.stack(actions, 1), torch.stack(togo, 1))[:, -1]
        actions[-1] = logits.argmax(-1)
        pos = (pos + STEP[actions[-1]]).clamp(0, SIZE - 1)
        score += (pos == goal).float()
    model.train()
    return score.mean().item(), want.mean().item()


skill = torch.tensor(0.55)
states, actions, togo = behave(8000, skill)
print(f"dataset mean return {togo[:, 0].mean().item():.3f}")
model = DecisionTransformer(cfg.dim, cfg.context)
opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, betas=(0.9, 0.98))
for update in range(cfg.updates):
    idx = torch.randint(len(states), (cfg.batch,))
    logits = model(states[idx], actions[idx], togo[idx])
    loss = F.cross_entropy(logits.flatten(0, 1), actions[idx].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if update % 20 == 0 or update == cfg.updates - 1:
        norm = sum(p.norm().item() ** 2 for p in model.parameters()) ** 0.5
        print(f"update {update:4d} loss {loss.item():.4f} weight norm {norm:.2f}")
got, want = rollout(model)
print(f"rollout return {got:.3f} best possible {want:.3f}")
