import time
from typing import NamedTuple
import torch
import torch.nn as nn

N_ITEMS, N_COLOURS, PICKS, LIMIT = (12, 4, 4, 2.0)


class Instance(NamedTuple):
    value: torch.Tensor
    weight: torch.Tensor
    colour: torch.Tensor

    def features(self):
        onehot = nn.functional.one_hot(self.colour, N_COLOURS).float()
        return torch.cat([self.value[..., None], self.weight[..., None], onehot], dim=-1)


def draw(n):
    return Instance(
        torch.rand(n, N_ITEMS),
        torch.rand(n, N_ITEMS) * 0.9 + 0.1,
        torch.randint(N_COLOURS, (n, N_ITEMS)),
    )


def reward(inst, picks):
    total = torch.zeros(len(picks))
    load = torch.zeros(len(picks))
    seen = torch.zeros(len(picks), N_COLOURS, dtype=torch.bool)
    rows = torch.arange(len(picks))
    for k in range(picks.shape[1]):
        i = picks[:, k]
        c, w = (inst.colour[rows, i], inst.weight[rows, i])
        ok = ~seen[rows, c] & (load + w <= LIMIT)
        total += torch.where(ok, inst.value[rows, i], torch.zeros(()))
        load += torch.where(ok, w, torch.zeros(()))
        seen[rows, c] |= ok
    return total


class Policy(nn.Module):
    def __init__(self, d=48, heads=4):
        super().__init__()
        self.inp = nn.Linear(2 + N_COLOURS, d)
        self.blocks = nn.ModuleList(
            [
                nn.ModuleDict(
                    {
                        "n1": nn.LayerNorm(d),
                        "att": nn.MultiheadAttention(d, heads, batch_first=True),
                        "n2": nn.LayerNorm(d),
                        "ff": nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)),
                    }
                )
                for _ in range(2)
            ]
        )
        self.context = nn.Linear(2 * d + N_COLOURS + 1, d)
        self.key = nn.Linear(d, d)
        nn.init.zeros_(self.key.weight)
        nn.init.zeros_(self.key.bias)

    def forward(self, inst, greedy=False):
        x = self.inp(inst.features())
        for b in self.blocks:
            h = b["n1"](x)
            x = x + b["att"](h, h, h, need_weights=False)[0]
            x = x + b["ff"](b["n2"](x))
        keys, graph = (self.key(x), x.mean(1))
        n = len(x)
        rows = torch.arange(n)
        taken = torch.zeros(n, N_ITEMS, dtype=torch.bool)
        picked = torch.zeros_like(graph)
        colours, load = (torch.zeros(n, N_COLOURS), torch.zeros(n, 1))
        picks, logps = ([], [])
        for _ in range(PICKS):
            query = self.context(torch.cat([graph, picked, colours, load], dim=-1))
            logits = torch.einsum("nd,nid->ni", query, keys) / keys.size(-1) ** 0.5
            dist = torch.distributions.Categorical(logits=logits.masked_fill(taken, -1000000000.0))
            a = dist.probs.argmax(-1) if greedy else dist.sample()
            logps.append(dist.log_prob(a))
            picks.append(a)
            taken = taken.scatter(1, a[:, None], True)
            picked = picked + x[rows, a] / PICKS
            colours = colours.scatter(1, inst.colour[rows, a][:, None], 1.0)
            load = load + inst.weight[rows, a][:, None]
        return (torch.stack(picks, 1), torch.stack(logps, 1).sum(1))


@torch.no_grad()
def evaluate(policy, inst):
    picks, _ = policy(inst, greedy=True)
    by_value = inst.value.topk(PICKS, dim=1).indices
    return (reward(inst, picks).mean().item(), reward(inst, by_value).mean().item())


def main():
    torch.manual_seed(8)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=0.001)
    test = draw(1000)
    t0 = time.time()
    score, greedy = evaluate(policy, test)
    print(f"before: policy {score:.3f}, four most valuable items {greedy:.3f}")
    for step in range(400):
        inst = draw(128)
        picks, logp = policy(inst)
        with torch.no_grad():
            r = reward(inst, picks)
            other = reward(inst, policy(inst)[0])
            advantage = r - other
        loss = -(advantage * logp).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0 or step == 399:
            print(
                f"step {step:3d}  loss {loss.item():+.4f}  mean reward {r.mean():.3f}  {time.time() - t0:.1f}s"
            )
    score, greedy = evaluate(policy, test)
    print(f"after: policy {score:.3f}, four most valuable items {greedy:.3f}")


if __name__ == "__main__":
    main()
