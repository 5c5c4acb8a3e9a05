import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
KEYS, VALS, PAIRS = 5, 5, 9
V = KEYS + VALS


def batch(n):
    table = torch.randint(0, VALS, (n, KEYS)) + KEYS
    k = torch.randint(0, KEYS, (n, PAIRS))
    v = table.gather(1, k)
    return torch.stack([k, v], -1).flatten(1), k


class UT(nn.Module):
    def __init__(self, d=48, heads=4, loops=3):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        nn.init.normal_(self.emb.weight, std=d ** -0.5)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.proj = nn.Linear(d, d, bias=False)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
        self.n1, self.n2, self.nf = nn.RMSNorm(d), nn.RMSNorm(d), nn.RMSNorm(d)
        self.depth = nn.Parameter(torch.zeros(loops, d))
        self.mix = nn.Parameter(torch.tensor(0.5))
        self.heads = heads

    def forward(self, x):
        e = self.emb(x) * self.emb.embedding_dim ** 0.5
        B, T, D = e.shape
        h = e + self.mix * F.pad(e, (0, 0, 1, 0))[:, :-1]
        for step in self.depth:
            q, k, v = self.qkv(self.n1(h + step)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + self.proj(a.transpose(1, 2).reshape(B, T, D))
            h = h + self.ff(self.n2(h + step))
        return self.nf(h) @ self.emb.weight.T


def seen_mask(k):
    return (torch.tril(k[:, :, None] == k[:, None, :], -1)).any(-1)


net = UT()
STEPS = 300
opt = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.05, betas=(0.9, 0.95))
sched = torch.optim.lr_scheduler.SequentialLR(opt, [
    torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, 20),
    torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS - 20)], [20])


@torch.no_grad()
def recall():
    x, k = batch(300)
    p = net(x)[:, 0::2].argmax(-1) == x[:, 1::2]
    m = seen_mask(k)
    return p[m].float().mean().item(), p[~m].float().mean().item()


for it in range(STEPS):
    x, _ = batch(32)
    logits = net(x[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    if it % 30 == 0 or it == STEPS - 1:
        print("it %3d loss %.4f  recall(seen key) %.3f  (new key) %.3f" % (it, loss.item(), *recall()))
