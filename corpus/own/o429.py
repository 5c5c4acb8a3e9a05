import torch
import torch.nn as nn
from torch.distributions import Categorical

CTX, ARMS = 10, 6


class World:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.W = torch.randn(CTX, ARMS, generator=self.g)

    def contexts(self, n):
        return torch.randn(n, CTX, generator=self.g)

    def pay(self, c, a):
        mean = torch.tanh(c @ self.W / 2).gather(1, a.unsqueeze(1)).squeeze(1)
        return mean + 0.3 * torch.randn(len(a), generator=self.g)

    def best(self, c):
        return torch.tanh(c @ self.W / 2).amax(1)


class Agent(nn.Module):
    def __init__(self, h=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(CTX, h), nn.Tanh())
        self.pi = nn.Linear(h, ARMS)
        self.v = nn.Linear(h, 1)
        nn.init.zeros_(self.pi.weight)

    def forward(self, c):
        z = self.trunk(c)
        return Categorical(logits=self.pi(z)), self.v(z.detach()).squeeze(-1)


def main(updates=600, n=128):
    torch.manual_seed(15)
    world, agent = World(15), Agent()
    opt = torch.optim.Adam(agent.parameters(), lr=4e-3)
    reward_avg = 0.0
    for u in range(updates):
        c = world.contexts(n)
        dist, value = agent(c)
        a = dist.sample()
        r = world.pay(c, a)
        adv = r - value.detach()
        pg = -(dist.log_prob(a) * adv).mean()
        loss = pg + 0.5 * (value - r).square().mean() - 0.003 * dist.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        reward_avg = 0.95 * reward_avg + 0.05 * r.mean().item()
        if u % 30 == 0 or u == updates - 1:
            print(f"update {u} loss {loss.item():+.4f} reward {reward_avg:.4f}", flush=True)
    with torch.no_grad():
        c = world.contexts(4000)
        got = world.pay(c, agent(c)[0].probs.argmax(1)).mean().item()
        print(f"greedy reward {got:.4f}, oracle {world.best(c).mean().item():.4f}")


if __name__ == "__main__":
    main()
