import numpy as np
import torch, torch.nn as nn
from torch.func import functional_call, grad_and_value

rng = np.random.default_rng(17)
torch.manual_seed(17)
torch.set_num_threads(1)
WORDS, LENGTH, DIM = (40, 16, 48)
TOPIC = 0
VALUE = np.concatenate([[0.0], rng.normal(0, 0.28, WORDS - 1)])


def answers(n):
    w = rng.integers(1, WORDS, (n, LENGTH))
    at = rng.integers(0, LENGTH // 2, n)
    w[np.arange(n), at] = TOPIC
    after = np.arange(LENGTH)[None] > at[:, None]
    return (torch.from_numpy(w), (VALUE[w] * after).sum(1))


def comparisons(n):
    a, qa = answers(n)
    b, qb = answers(n)
    p = 1 / (1 + np.exp(qb - qa))
    first = torch.from_numpy(rng.random(n) < p)
    win, lose = (torch.where(first[:, None], a, b), torch.where(first[:, None], b, a))
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).mean()
    return (win, lose, entropy)


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, DIM)
        self.words.weight.requires_grad_(False)
        pos = torch.arange(LENGTH)[:, None] / 30 ** (torch.arange(0, DIM, 2) / DIM)
        self.register_buffer("pos", torch.cat([pos.sin(), pos.cos()], 1))
        layer = lambda: nn.TransformerEncoderLayer(
            DIM, 4, 2 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.ModuleList([layer(), layer()])
        self.norm = nn.LayerNorm(DIM)
        self.score = nn.Linear(DIM, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, w):
        x = self.words(w) + self.pos
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        for l in self.body:
            x = l(x, src_mask=mask)
        return self.score(self.norm(x)[:, -1]).squeeze(-1)


model = RewardModel()
train_p = {k: p.detach().clone() for k, p in model.named_parameters() if p.requires_grad}
fixed = {k: p.detach() for k, p in model.named_parameters() if not p.requires_grad}
fixed.update(dict(model.named_buffers()))


def reward(params, w):
    return functional_call(model, {**fixed, **params}, (w,))


def objective(params, win, lose):
    r = reward(params, torch.cat([win, lose]))
    rw, rl = r.chunk(2)
    return nn.functional.softplus(rl - rw).mean() + 0.001 * r.mean() ** 2


value_and_grad = grad_and_value(objective)
momentum = {k: torch.zeros_like(p) for k, p in train_p.items()}


def lion(params, grads, lr, wd=0.02, b1=0.9, b2=0.98):
    new = {}
    for k, p in params.items():
        m, g = (momentum[k], grads[k])
        direction = torch.sign(b1 * m + (1 - b1) * g)
        new[k] = p * (1 - lr * wd) - lr * direction
        momentum[k] = b2 * m + (1 - b2) * g
    return new


test_win, test_lose, test_entropy = comparisons(1500)
test_a, qa = answers(1500)
test_b, qb = answers(1500)
STEPS, CYCLE, PEAK = (390, 130, 0.0006)
seen = []
for step in range(STEPS):
    lr = PEAK * 0.6 ** (step // CYCLE) * (1 - step % CYCLE / CYCLE)
    win, lose, h = comparisons(48)
    grads, value = value_and_grad(train_p, win, lose)
    train_p = lion(train_p, grads, lr)
    seen.append(value.item())
    if step % 40 == 39 or step == 0:
        print(
            f"step {step:3d} loss {np.mean(seen[-40:]):.4f} (noise floor of this batch {h:.4f}) lr {lr:.1e}"
        )
with torch.no_grad():
    d = reward(train_p, test_win) - reward(train_p, test_lose)
    agree = ((reward(train_p, test_a) > reward(train_p, test_b)).numpy() == (qa > qb)).mean()
print(
    f"test loss {nn.functional.softplus(-d).mean().item():.4f}, floor {test_entropy:.4f}, agreement with annotators {(d > 0).float().mean().item():.3f}, with hidden quality {agree:.3f}"
)
