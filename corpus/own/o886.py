import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value

torch.manual_seed(2)
V, T = 20, 24
rule = torch.randint(0, V, (V, V))


def stream(n):
    x = torch.randint(0, V, (n, 2))
    cols = [x[:, 0], x[:, 1]]
    for _ in range(T - 1):
        nxt = rule[cols[-2], cols[-1]]
        flip = torch.rand(n) < 0.05
        cols.append(torch.where(flip, torch.randint(0, V, (n,)), nxt))
    return torch.stack(cols, 1)


class Decoder(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.e = nn.Embedding(V, d)
        self.first = nn.Linear(2 * d, 3 * d)
        self.att = nn.Linear(d, 3 * d)
        self.up = nn.Linear(3 * d, d)
        self.o = nn.Linear(d, V)

    def forward(self, x):
        h = self.e(x)
        h = self.up(F.gelu(self.first(torch.cat([h, F.pad(h, (0, 0, 1, 0))[:, :-1]], -1))))
        q, k, v = self.att(F.layer_norm(h, h.shape[-1:])).chunk(3, -1)
        h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(F.layer_norm(h, h.shape[-1:]))


model = Decoder()
theta = {k: v.detach().clone() for k, v in model.named_parameters()}


def total_nll(theta, seq):
    logits = functional_call(model, theta, (seq[:, :-1],))
    return F.cross_entropy(logits.transpose(1, 2)[..., 1:], seq[:, 2:], reduction="sum")


step_fn = grad_and_value(total_nll)
velocity = {k: torch.zeros_like(v) for k, v in theta.items()}
STEPS, RADIUS = 400, 0.12
for s in range(STEPS):
    grads, value = step_fn(theta, stream(40))
    norm = math.sqrt(sum(g.square().sum().item() for g in grads.values()))
    size = RADIUS * (0.02 + 0.98 * (1 - s / STEPS))
    for k in theta:
        velocity[k] = 0.8 * velocity[k] + grads[k] / norm
        theta[k] = theta[k] - size * velocity[k]
    if s % 40 == 0:
        print(f"step {s} summed nll {value.item():.1f} gradient norm {norm:.1f}")
with torch.no_grad():
    seq = stream(400)
    logits = functional_call(model, theta, (seq[:, :-1],))
    acc = (logits[:, 1:].argmax(-1) == seq[:, 2:]).float().mean().item()
    print(f"held-out next-token accuracy {acc:.3f} (ceiling about 0.95)")
