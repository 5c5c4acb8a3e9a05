from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Setup:
    vocab: int = 12
    prompt: int = 4
    answer: int = 4
    dim: int = 48
    prompts_per_step: int = 12
    group: int = 8
    steps: int = 200
    lr: float = 3e-3
    clip: float = 0.2
    entropy: float = 0.003
    seed: int = 4


class Policy(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.emb = nn.Embedding(s.vocab, s.dim)
        self.pos = nn.Embedding(s.prompt + s.answer, s.dim)
        layer = nn.TransformerEncoderLayer(s.dim, 4, 2 * s.dim, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, nn.LayerNorm(s.dim), enable_nested_tensor=False)
        self.out = nn.Linear(s.dim, s.vocab)
        nn.init.normal_(self.out.weight, std=0.02)

    def forward(self, ids):
        T = ids.size(1)
        m = nn.Transformer.generate_square_subsequent_mask(T)
        return self.out(self.enc(self.emb(ids) + self.pos.weight[:T], mask=m, is_causal=True))


def rollout(policy, prompt, s):
    ids = prompt
    with torch.no_grad():
        for _ in range(s.answer):
            probs = policy(ids)[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(probs, 1)], 1)
    return ids


def reward(ids, table, s):
    goal = table[ids[:, : s.prompt]]
    return (ids[:, s.prompt:] == goal).float().mean(1)


def token_logp(policy, ids, s):
    lp = policy(ids[:, :-1])[:, s.prompt - 1:].log_softmax(-1)
    chosen = lp.gather(-1, ids[:, s.prompt:, None]).squeeze(-1)
    ent = -(lp.exp() * lp).sum(-1).mean()
    return chosen, ent


def main():
    s = Setup()
    torch.manual_seed(s.seed)
    table = torch.randperm(s.vocab)
    policy = Policy(s)
    opt = torch.optim.Adam(policy.parameters(), lr=s.lr)
    running = 0.0
    for step in range(1, s.steps + 1):
        prompt = torch.randint(s.vocab, (s.prompts_per_step, s.prompt)).repeat_interleave(s.group, 0)
        ids = rollout(policy, prompt, s)
        r = reward(ids, table, s)
        grouped = r.view(-1, s.group)
        adv = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).flatten()
        logp, ent = token_logp(policy, ids, s)
        ratio = (logp - logp.detach()).exp()
        surrogate = torch.min(ratio * adv[:, None], ratio.clamp(1 - s.clip, 1 + s.clip) * adv[:, None])
        loss = -surrogate.mean() - s.entropy * ent
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        running += r.mean().item()
        if step % 20 == 0:
            print(f"step {step:4d} loss {loss.item():+.5f} mean reward {running / 20:.3f} entropy {ent.item():.3f}")
            running = 0.0
    test = torch.randint(s.vocab, (300, s.prompt))
    print(f"reward on fresh prompts {reward(rollout(policy, test, s), table, s).mean().item():.3f}")


if __name__ == "__main__":
    main()
