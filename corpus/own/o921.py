import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
VOCAB, PROMPT, GEN = 16, 3, 8


class TinyLM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(PROMPT + GEN, d)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        t = ids.size(1)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        return self.head(self.norm(self.body(self.emb(ids) + self.pos(torch.arange(t)), mask=mask)))


@torch.no_grad()
def rollout(model, prompts):
    ids = prompts
    for _ in range(GEN):
        nxt = torch.multinomial(model(ids)[:, -1].softmax(-1), 1)
        ids = torch.cat([ids, nxt], 1)
    return ids


def reward_fn(ids):
    key = ids[:, :1]
    answer = ids[:, PROMPT:]
    return (((answer - key) % 4) == 0).float().mean(-1)


policy = TinyLM()
reference = TinyLM()
reference.load_state_dict(policy.state_dict())
reference.requires_grad_(False)
opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
GROUPS, SAMPLES, KL = 12, 8, 0.01

for step in range(150):
    prompts = torch.randint(0, VOCAB, (GROUPS, PROMPT)).repeat_interleave(SAMPLES, 0)
    ids = rollout(policy, prompts)
    rewards = reward_fn(ids)
    grouped = rewards.view(GROUPS, SAMPLES)
    adv = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    targets = ids[:, PROMPT:]
    logp_all = F.log_softmax(policy(ids[:, :-1])[:, PROMPT - 1:], -1)
    logp = logp_all.gather(2, targets.unsqueeze(2)).squeeze(2)
    with torch.no_grad():
        ref = F.log_softmax(reference(ids[:, :-1])[:, PROMPT - 1:], -1).gather(2, targets.unsqueeze(2)).squeeze(2)
    delta = ref - logp
    kl = (delta.exp() - delta - 1).mean()
    ratio = (logp - logp.detach()).exp()
    loss = -(ratio * adv).mean() + KL * kl
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    if step % 15 == 0 or step == 149:
        print(f"step {step:3d} loss {loss.item():+.5f} reward {rewards.mean().item():.3f} kl {kl.item():.3f}")

test = torch.randint(0, VOCAB, (256, PROMPT))
print(f"final mean reward {reward_fn(rollout(policy, test)).mean().item():.3f}")
