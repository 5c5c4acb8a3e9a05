import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)

CITIES, BATCH = 8, 64


class Policy(nn.Module):
    def __init__(self, d=64, heads=4, depth=2):
        super().__init__()
        self.inp = nn.Linear(2, d)
        layer = nn.TransformerEncoderLayer(
            d, heads, 2 * d, dropout=0.0, batch_first=True, norm_first=True
        )
        self.enc = nn.TransformerEncoder(
            layer, depth, norm=nn.LayerNorm(d), enable_nested_tensor=False
        )
        self.query = nn.Linear(3 * d, d)
        self.key = nn.Linear(d, d)
        self.scale = d**-0.5
        self.value = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, 1))

    def rollout(self, xy, greedy=False):
        h = self.enc(self.inp(xy))
        graph = h.mean(1)
        B = len(xy)
        rows = torch.arange(B)
        keys = self.key(h)
        current = torch.zeros(B, dtype=torch.long)
        visited = torch.zeros(B, CITIES, dtype=torch.bool)
        visited[:, 0] = True
        tour, logp, entropy = [current], 0.0, 0.0
        for _ in range(CITIES - 1):
            q = self.query(torch.cat([graph, h[rows, current], h[:, 0]], -1))
            score = 8 * torch.tanh((keys @ q[..., None]).squeeze(-1) * self.scale)
            dist = torch.distributions.Categorical(logits=score.masked_fill(visited, -1e9))
            current = dist.probs.argmax(-1) if greedy else dist.sample()
            logp = logp + dist.log_prob(current)
            entropy = entropy + dist.entropy()
            visited = visited.clone()
            visited[rows, current] = True
            tour.append(current)
        order = torch.stack(tour, 1)
        path = xy.gather(1, order[..., None].expand(-1, -1, 2))
        length = (path - path.roll(-1, 1)).norm(dim=-1).sum(1)
        return length, logp, entropy, self.value(graph.detach()).squeeze(-1)


model = Policy()
critic = list(model.value.parameters())
ids = {id(p) for p in critic}
actor = [p for p in model.parameters() if id(p) not in ids]
opt_actor = torch.optim.Adam(actor, lr=1e-3)
opt_critic = torch.optim.Adam(critic, lr=1e-3)
test = torch.rand(500, CITIES, 2)

for step in range(1, 401):
    xy = torch.rand(BATCH, CITIES, 2)
    length, logp, entropy, value = model.rollout(xy)
    adv = (length - value).detach()
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    actor_loss = (adv * logp).mean() - 0.01 * entropy.mean()
    critic_loss = F.mse_loss(value, length)
    opt_actor.zero_grad()
    actor_loss.backward()
    nn.utils.clip_grad_norm_(actor, 1.0)
    opt_actor.step()
    opt_critic.zero_grad()
    critic_loss.backward()
    opt_critic.step()
    if step % 25 == 0:
        print(
            f"step {step} loss {actor_loss.item():.4f} critic {critic_loss.item():.4f} "
            f"tour {length.mean().item():.4f}",
            flush=True,
        )
    if step % 100 == 0:
        with torch.no_grad():
            print(
                f"step {step} greedy test tour {model.rollout(test, True)[0].mean().item():.4f}",
                flush=True,
            )
