import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(90)
SIZE, GAMMA, ACTIONS = 5, 0.8, torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])


def reset(n, g):
    while True:
        a = torch.randint(0, SIZE, (n, 2), generator=g)
        b = torch.randint(0, SIZE, (n, 2), generator=g)
        b = torch.where((a == b).all(-1, keepdim=True), (b + 1) % SIZE, b)
        return a, b


def transition(pos, goal, act):
    nxt = (pos + ACTIONS[act]).clamp(0, SIZE - 1)
    done = (nxt == goal).all(-1)
    closer = (pos - goal).abs().sum(-1) - (nxt - goal).abs().sum(-1)
    return nxt, done.float() + 0.25 * closer, done


class QNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.row = nn.Embedding(SIZE, d)
        self.col = nn.Embedding(SIZE, d)
        self.role = nn.Embedding(2, d)
        self.q = nn.Parameter(torch.randn(1, 1, d) * d ** -0.5)
        layer = nn.TransformerEncoderLayer(d, 4, 96, 0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.head = nn.Linear(d, 4)

    def forward(self, pos, goal):
        s = torch.stack([pos, goal], 1)
        h = self.row(s[..., 0]) + self.col(s[..., 1]) + self.role.weight
        h = self.enc(torch.cat([self.q.expand(len(h), -1, -1), h], 1))
        return self.head(h[:, 0])


@torch.no_grad()
def rollout(net, g, episodes=200, horizon=12):
    pos, goal = reset(episodes, g)
    alive = torch.ones(episodes, dtype=torch.bool)
    for _ in range(horizon):
        nxt, _, done = transition(pos, goal, net(pos, goal).argmax(-1))
        pos = torch.where(alive[:, None], nxt, pos)
        alive &= ~done
    return (~alive).float().mean().item()


g = torch.Generator().manual_seed(90)
logs = []
pos, goal = reset(500, g)
for _ in range(40):
    act = torch.randint(0, 4, (500,), generator=g)
    nxt, rew, done = transition(pos, goal, act)
    logs.append((pos, goal, act, rew, nxt, done))
    rp, rg = reset(500, g)
    pos, goal = torch.where(done[:, None], rp, nxt), torch.where(done[:, None], rg, goal)
P, G, A, R, S, D = (torch.cat(c) for c in zip(*logs))
print("transitions", len(P), "reaching the goal", int(D.sum()))

net = QNet()
frozen = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(1, 501):
    i = torch.randint(0, len(P), (64,), generator=g)
    with torch.no_grad():
        pick = net(S[i], G[i]).argmax(-1, keepdim=True)
        boot = frozen(S[i], G[i]).gather(1, pick).squeeze(1)
        goal_value = R[i] + GAMMA * boot * (~D[i])
    q = net(P[i], G[i]).gather(1, A[i, None]).squeeze(1)
    loss = F.smooth_l1_loss(q, goal_value)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if step % 20 == 0:
        frozen.load_state_dict(net.state_dict())
    if step % 50 == 0:
        e = torch.Generator().manual_seed(1)
        print(f"step {step} td loss {loss.item():.5f} mean q {q.mean().item():.3f} success {rollout(net, e):.3f}")
print(f"greedy policy success rate {rollout(net, torch.Generator().manual_seed(2), 1000):.4f}")
