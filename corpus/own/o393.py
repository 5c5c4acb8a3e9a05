import copy
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(2)
torch.manual_seed(2)
V, P, R = 24, 8, 8


class Policy(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.e = nn.Embedding(V, d)
        self.p = nn.Embedding(P + R, d)
        layer = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.t = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.o = nn.Linear(d, V)

    def forward(self, ids):
        n = ids.shape[1]
        m = nn.Transformer.generate_square_subsequent_mask(n)
        return self.o(self.t(self.e(ids) + self.p.weight[:n], mask=m, is_causal=True))


def response_logp(net, ids):
    lp = net(ids[:, :-1]).log_softmax(-1)
    got = lp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return got[:, P - 1:].sum(-1)


def pairs(n):
    prompt = torch.randint(V, (n, P))
    good = torch.randint(V, (n, R))
    bad = torch.randint(V, (n, R))
    key = prompt[:, :1] % 2
    pick = torch.rand(n, R)
    good = torch.where(pick < 0.5, good // 2 * 2 + key, good)
    bad = torch.where(pick < 0.5, bad // 2 * 2 + 1 - key, bad)
    return torch.cat([prompt, good], 1), torch.cat([prompt, bad], 1)


policy = Policy()
policy.eval()
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=3e-4)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 15)
BETA = 0.2
for step in range(200):
    chosen, rejected = pairs(24)
    both = torch.cat([chosen, rejected])
    with torch.no_grad():
        rc, rr = response_logp(reference, both).chunk(2)
    pc, pr = response_logp(policy, both).chunk(2)
    margin = BETA * ((pc - rc) - (pr - rr))
    loss = -F.logsigmoid(margin).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 5.0)
    optimizer.step()
    warm.step()
    if step % 20 == 0 or step == 199:
        print(f"step {step} loss {loss.item():.4f} acc {(margin > 0).float().mean():.2f} "
              f"chosen {(pc - rc).mean().item():+.2f} rejected {(pr - rr).mean().item():+.2f}")
