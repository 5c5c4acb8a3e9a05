import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(17)

SIZE, ENVS, HORIZON, EPISODE = 7, 48, 24, 20
ITERATIONS, EPOCHS, MINIBATCHES = 32, 3, 4
GAMMA, LAM, CLIP, ENT, VF, LR = 0.97, 0.95, 0.2, 0.005, 0.5, 2e-3
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class GridEnv:
    def __init__(self, n):
        self.n = n
        self.pos = torch.randint(SIZE, (n, 2))
        self.goal = torch.randint(SIZE, (n, 2))
        self.t = torch.randint(EPISODE, (n,))

    def observe(self):
        return torch.cat([self.pos, self.goal], 1).float() / (SIZE - 1)

    def step(self, action):
        self.pos = (self.pos + MOVES[action]).clamp(0, SIZE - 1)
        self.t = self.t + 1
        reached = (self.pos == self.goal).all(1)
        reward = reached.float() - 0.02
        done = reached | (self.t >= EPISODE)
        fresh = torch.randint(SIZE, (self.n, 2)), torch.randint(SIZE, (self.n, 2))
        self.pos = torch.where(done[:, None], fresh[0], self.pos)
        self.goal = torch.where(done[:, None], fresh[1], self.goal)
        self.t = torch.where(done, torch.zeros_like(self.t), self.t)
        return self.observe(), reward, done.float(), reached


class ActorCritic(nn.Module):
    def __init__(self, obs=4, hidden=64, actions=4):
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(obs, hidden), nn.Tanh(),
            nn.Linear(hidden, hidden), nn.Tanh(),
            nn.Linear(hidden, actions), nn.Softmax(dim=-1),
        )
        self.critic = nn.Sequential(
            nn.Linear(obs, hidden), nn.Tanh(),
            nn.Linear(hidden, hidden), nn.Tanh(),
            nn.Linear(hidden, 1),
        )

    def forward(self, obs):
        return Categorical(logits=self.actor(obs)), self.critic(obs).squeeze(-1)


env = GridEnv(ENVS)
agent = ActorCritic()
optimizer = torch.optim.Adam(agent.parameters(), lr=LR, eps=1e-5)
obs = env.observe()

for iteration in range(ITERATIONS):
    store = {k: [] for k in ("obs", "act", "logp", "val", "rew", "done")}
    finished = successes = 0
    for _ in range(HORIZON):
        with torch.no_grad():
            dist, value = agent(obs)
            action = dist.sample()
        nxt, reward, done, reached = env.step(action)
        for k, v in zip(store, (obs, action, dist.log_prob(action), value, reward, done)):
            store[k].append(v)
        finished += done.sum().item()
        successes += reached.sum().item()
        obs = nxt
    roll = {k: torch.stack(v) for k, v in store.items()}
    with torch.no_grad():
        nxt_value = agent(obs)[1]
    adv = torch.zeros(HORIZON, ENVS)
    carry = torch.zeros(ENVS)
    for t in reversed(range(HORIZON)):
        keep = 1 - roll["done"][t]
        delta = roll["rew"][t] + GAMMA * nxt_value * keep - roll["val"][t]
        carry = delta + GAMMA * LAM * keep * carry
        adv[t] = carry
        nxt_value = roll["val"][t]
    ret = adv + roll["val"]
    flat = {k: v.flatten(0, 1) for k, v in roll.items()}
    adv, ret = adv.flatten(), ret.flatten()
    for _ in range(EPOCHS):
        for idx in torch.randperm(len(adv)).chunk(MINIBATCHES):
            dist, value = agent(flat["obs"][idx])
            ratio = (dist.log_prob(flat["act"][idx]) - flat["logp"][idx]).exp()
            a = (adv[idx] - adv[idx].mean()) / (adv[idx].std() + 1e-8)
            pg = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
            v_loss = 0.5 * (value - ret[idx]).pow(2).mean()
            entropy = dist.entropy().mean()
            loss = pg + VF * v_loss - ENT * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    if iteration % 2 == 0 or iteration == ITERATIONS - 1:
        print(f"iter {iteration:3d} loss {loss.item():+.4f} value loss {v_loss.item():.4f} entropy {entropy.item():.3f} "
              f"mean reward {roll['rew'].mean().item():+.4f} success {successes / max(finished, 1):.3f}")
