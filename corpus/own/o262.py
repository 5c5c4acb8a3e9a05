import torch
import torch.nn as nn
import torch.nn.functional as F


class GridWorld:
    def __init__(self, n=64, size=12, seed=0):
        self.n, self.size = n, size
        self.g = torch.Generator().manual_seed(seed)
        self.walls = (torch.rand(size, size, generator=self.g) < 0.2).float()
        self.pos = torch.randint(size, (n, 2), generator=self.g)
        self.goal = torch.randint(size, (n, 2), generator=self.g)

    def observe(self):
        img = torch.zeros(self.n, 3, self.size, self.size)
        img[:, 0] = self.walls
        rows = torch.arange(self.n)
        img[rows, 1, self.pos[:, 0], self.pos[:, 1]] = 1
        img[rows, 2, self.goal[:, 0], self.goal[:, 1]] = 1
        return img

    def step(self):
        move = torch.randint(-1, 2, (self.n, 2), generator=self.g)
        self.pos = (self.pos + move).clamp(0, self.size - 1)
        new = torch.rand(self.n, generator=self.g) < 0.05
        self.goal[new] = torch.randint(self.size, (int(new.sum()), 2), generator=self.g)
        return self.observe()


def conv_net(out, extra):
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.LeakyReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.LeakyReLU(),
              nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.LeakyReLU(), nn.Flatten(), nn.Linear(32 * 9, 128)]
    if extra:
        layers += [nn.ReLU(), nn.Linear(128, 128)]
    layers += [nn.ReLU(), nn.Linear(128, out)]
    net = nn.Sequential(*layers)
    for m in net:
        if isinstance(m, (nn.Conv2d, nn.Linear)):
            nn.init.orthogonal_(m.weight, 2 ** 0.5)
            nn.init.zeros_(m.bias)
    return net


class RunningNorm:
    def __init__(self, dim, momentum=0.1):
        self.mean, self.sq, self.momentum = torch.zeros(dim), torch.ones(dim), momentum

    def update(self, x):
        self.mean = (1 - self.momentum) * self.mean + self.momentum * x.mean(0)
        self.sq = (1 - self.momentum) * self.sq + self.momentum * x.pow(2).mean(0)

    def __call__(self, x):
        std = (self.sq - self.mean.pow(2)).clamp(min=1e-4).sqrt()
        return (x - self.mean) / std


class CuriosityModule(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.target = conv_net(dim, extra=False)
        self.predictor = conv_net(dim, extra=True)
        self.norm = RunningNorm(dim)

    def forward(self, obs):
        goal = self.target(obs)
        self.norm.update(goal)
        return F.mse_loss(self.predictor(obs), self.norm(goal).detach(), reduction="none").mean(1)


def main():
    torch.manual_seed(17)
    env = GridWorld(seed=170)
    rnd = CuriosityModule()
    optimizer = torch.optim.Adam(rnd.predictor.parameters(), lr=1e-3)
    with torch.no_grad():
        for _ in range(100):
            rnd.norm.update(rnd.target(env.step()))
    bonus = 0.0
    for update in range(180):
        obs = env.step()
        intrinsic = rnd(obs)
        loss = intrinsic.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bonus = 0.95 * bonus + 0.05 * intrinsic.detach().max().item()
        if update % 20 == 0 or update == 179:
            print(f"update {update} loss {loss.item():.4f} max bonus {bonus:.3f}")


if __name__ == "__main__":
    main()
