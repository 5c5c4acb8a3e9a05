import torch
from torch import nn
import torch.nn.functional as F
from torch.distributions import Categorical

N_SYM, N_IN = 6, 4
BOS = N_SYM


class Policy(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.tok = nn.Embedding(N_SYM + 1, dim)
        self.pos = nn.Parameter(0.3 * torch.randn(2 * N_IN + 1, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.pi, self.v = nn.Linear(dim, N_SYM), nn.Linear(dim, 1)
        nn.init.normal_(self.pi.weight, std=0.01)
        nn.init.zeros_(self.v.weight)

    def forward(self, ids):
        t = ids.shape[1]
        mask = torch.full((t, t), float("-inf")).triu(1)
        h = self.norm(self.body(self.tok(ids) + self.pos[:t], mask=mask))
        return self.pi(h), self.v(h).squeeze(-1)


def reward_fn(prompt, answer):
    return (prompt.sort(1).values == answer).float()


@torch.no_grad()
def generate(policy, prompt, greedy=False):
    ids = torch.cat([prompt, torch.full((len(prompt), 1), BOS)], 1)
    logp, values = [], []
    for _ in range(N_IN):
        logits, v = policy(ids)
        dist = Categorical(logits=logits[:, -1])
        a = logits[:, -1].argmax(-1) if greedy else dist.sample()
        logp.append(dist.log_prob(a))
        values.append(v[:, -1])
        ids = torch.cat([ids, a[:, None]], 1)
    return ids, torch.stack(logp, 1), torch.stack(values, 1)


def gae(rewards, values, gamma=0.3, lam=0.9):
    adv, last = torch.zeros_like(rewards), 0.0
    for t in reversed(range(rewards.shape[1])):
        nxt = values[:, t + 1] if t + 1 < rewards.shape[1] else 0.0
        last = rewards[:, t] + gamma * nxt - values[:, t] + gamma * lam * last
        adv[:, t] = last
    return adv, adv + values


def ppo_update(policy, opt, ids, old_logp, adv, ret, clip=0.2, epochs=3):
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    actions = ids[:, N_IN + 1 :]
    for _ in range(epochs):
        logits, v = policy(ids[:, :-1])
        logits, v = logits[:, N_IN:], v[:, N_IN:]
        dist = Categorical(logits=logits)
        ratio = (dist.log_prob(actions) - old_logp).exp()
        surrogate = torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
        value_loss = F.mse_loss(v, ret)
        loss = -surrogate + 0.5 * value_loss - 0.01 * dist.entropy().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        opt.step()
    return loss.item(), dist.entropy().mean().item()


def main():
    torch.manual_seed(0)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=2e-3, eps=1e-5)
    for it in range(80):
        prompt = torch.randint(0, N_SYM, (96, N_IN))
        ids, logp, values = generate(policy, prompt)
        rewards = reward_fn(prompt, ids[:, N_IN + 1 :])
        adv, ret = gae(rewards, values)
        loss, ent = ppo_update(policy, opt, ids, logp, adv, ret)
        if it % 10 == 0 or it == 79:
            print(f"iter {it:3d} loss {loss:+.4f} entropy {ent:.3f} reward {rewards.sum(1).mean():.3f} of {N_IN}")
    prompt = torch.randint(0, N_SYM, (400, N_IN))
    ids, _, _ = generate(policy, prompt, greedy=True)
    print("greedy reward", round(reward_fn(prompt, ids[:, N_IN + 1 :]).sum(1).mean().item(), 3))


if __name__ == "__main__":
    main()
