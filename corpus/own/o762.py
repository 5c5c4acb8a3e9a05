import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

DIGITS, SEP, BOS = 10, 10, 11
VOCAB, P_LEN, C_LEN = 12, 5, 5
GROUP, N_PROMPTS, BETA, CLIP = 8, 16, 0.01, 0.2


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.n2(x))


class Policy(nn.Module):
    def __init__(self, d=64, layers=2, heads=4):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(P_LEN + C_LEN + 2, d)
        self.blocks = nn.Sequential(*[Block(d, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        return self.lm_head(self.norm(self.blocks(x)))


def make_prompts(n):
    d = torch.randint(0, DIGITS, (n, P_LEN))
    return torch.cat([torch.full((n, 1), BOS), d, torch.full((n, 1), SEP)], 1), d.flip(1)


@torch.no_grad()
def rollout(policy, prompts, greedy=False):
    seq = prompts
    for _ in range(C_LEN):
        logits = policy(seq)[:, -1]
        nxt = logits.argmax(-1) if greedy else torch.multinomial(logits.softmax(-1), 1).squeeze(1)
        seq = torch.cat([seq, nxt[:, None]], 1)
    return seq


def completion_logps(policy, seq):
    logits = policy(seq[:, :-1])[:, -C_LEN:]
    return F.log_softmax(logits, -1).gather(-1, seq[:, -C_LEN:, None]).squeeze(-1)


def reward_fn(seq, answer):
    return (seq[:, -C_LEN:] == answer).float().mean(1)


def sft(policy, steps=220):
    opt = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    for step in range(steps):
        prompt, ans = make_prompts(64)
        noisy = torch.where(torch.rand(ans.shape) < 0.5, torch.randint(0, DIGITS, ans.shape), ans)
        logits = policy(torch.cat([prompt, noisy], 1)[:, :-1])[:, -C_LEN:]
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), noisy.reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"sft {step:3d} ce {loss.item():.4f}")


policy = Policy()
sft(policy)
ref = copy.deepcopy(policy).eval()
for p in ref.parameters():
    p.requires_grad_(False)

optimizer = torch.optim.AdamW(policy.parameters(), lr=4e-4, weight_decay=0.0)
running = None
for step in range(180):
    prompts, answers = make_prompts(N_PROMPTS)
    prompts = prompts.repeat_interleave(GROUP, 0)
    answers = answers.repeat_interleave(GROUP, 0)
    seq = rollout(policy, prompts)
    reward = reward_fn(seq, answers)
    grouped = reward.view(N_PROMPTS, GROUP)
    adv = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)

    old_logps = completion_logps(policy, seq)
    ref_logps = completion_logps(ref, seq)
    logps = completion_logps(policy, seq)
    ratio = torch.exp(logps - old_logps)
    surrogate = torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv)
    delta = ref_logps - logps
    kl = delta.exp() - delta - 1
    loss = -(surrogate - BETA * kl).mean()

    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    running = reward.mean().item() if running is None else 0.9 * running + 0.1 * reward.mean().item()
    if step % 15 == 0 or step == 179:
        print(f"grpo {step:3d} loss {loss.item():+.5f} kl {kl.mean().item():.4f} "
              f"reward {reward.mean().item():.3f} (ema {running:.3f})")

test_p, test_a = make_prompts(256)
print(f"sampled accuracy {reward_fn(rollout(policy, test_p), test_a).mean():.3f} "
      f"exact {(rollout(policy, test_p)[:, -C_LEN:] == test_a).all(1).float().mean():.3f}")
