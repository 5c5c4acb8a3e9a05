import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

torch.manual_seed(12)
N = 10


class TSPPointer(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Linear(2, d)
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.ctx = nn.Linear(3 * d, d)
        self.key = nn.Linear(d, d, bias=False)

    def forward(self, xy, greedy=False):
        b = len(xy)
        h = self.enc(self.emb(xy))
        k = self.key(h)
        visited = torch.zeros(b, N, dtype=torch.bool)
        ar = torch.arange(b)
        cur = torch.zeros(b, dtype=torch.long)
        visited[ar, cur] = True
        tour, logp, ent = [cur], 0.0, 0.0
        first = h[:, 0]
        for _ in range(N - 1):
            q = self.ctx(torch.cat([h.mean(1), first, h[ar, cur]], -1))
            logit = 8 * torch.tanh((k @ q[..., None]).squeeze(-1) / q.shape[-1] ** 0.5)
            dist = Categorical(logits=logit.masked_fill(visited, -1e9))
            cur = dist.probs.argmax(-1) if greedy else dist.sample()
            logp = logp + dist.log_prob(cur)
            visited = visited.clone()
            visited[ar, cur] = True
            tour.append(cur)
        path = xy[ar[:, None], torch.stack(tour, 1)]
        length = (path - path.roll(-1, 1)).norm(dim=-1).sum(1)
        return length, logp


model = TSPPointer()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
test = torch.rand(300, N, 2, generator=torch.Generator().manual_seed(5))
with torch.no_grad():
    start = model(test, greedy=True)[0].mean().item()
for it in range(200):
    base = torch.rand(24, N, 2)
    xy = base.repeat_interleave(8, 0)
    length, logp = model(xy)
    adv = length.view(24, 8)
    adv = (adv - adv.mean(1, keepdim=True)).flatten().detach()
    loss = (adv * logp).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if it % 20 == 0:
        print("iter %d loss %.4f" % (it, loss.item()))
with torch.no_grad():
    end = model(test, greedy=True)[0].mean().item()
print("greedy tour length held-out: before %.3f after %.3f" % (start, end))
