import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(21)
N_USER, N_ITEM, N_CAT, HIST = 800, 600, 20, 10

item_cat = torch.randint(0, N_CAT, (N_ITEM,))
popularity = (torch.arange(1, N_ITEM + 1).float() ** -0.7)[torch.randperm(N_ITEM)]
user_taste = torch.stack([torch.randperm(N_CAT)[:2] for _ in range(N_USER)])


def sample_events(n):
    u = torch.randint(0, N_USER, (n,))
    cat = user_taste[u].gather(1, torch.randint(0, 2, (n, HIST + 1)))
    w = popularity[None] * (item_cat[None] == torch.arange(N_CAT)[:, None])
    draws = torch.multinomial(w, 4000, replacement=True)
    items = draws[cat, torch.randint(0, 4000, cat.shape)]
    return u, items[:, :HIST], items[:, HIST]


class UserTower(nn.Module):
    def __init__(self, items, d):
        super().__init__()
        self.items = items
        self.pool = nn.MultiheadAttention(d, 4, batch_first=True)
        self.seed = nn.Parameter(torch.randn(1, 2, d) * 0.3)
        self.mlp = nn.Sequential(nn.Linear(2 * d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, hist):
        e = self.items(hist)
        s, _ = self.pool(self.seed.expand(len(e), -1, -1), e, e, need_weights=False)
        return F.normalize(self.mlp(s.flatten(1)), dim=-1)


class ItemTower(nn.Module):
    def __init__(self, items, d):
        super().__init__()
        self.items = items
        self.mlp = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))

    def forward(self, ids):
        return F.normalize(self.items(ids) + self.mlp(self.items(ids)), dim=-1)


D, TEMP = 32, 0.1
table = nn.Embedding(N_ITEM, D, sparse=True)
users, items = UserTower(table, D), ItemTower(table, D)
dense = [p for m in (users, items) for n, p in m.named_parameters() if not n.startswith("items.")]
opt_sparse = torch.optim.SparseAdam(list(table.parameters()), lr=1e-2)
opt_dense = torch.optim.AdamW(dense, lr=2e-3)

U, Hs, Y = sample_events(24000)
freq = torch.bincount(Y, minlength=N_ITEM).float()
log_q = torch.log((freq + 1) / (freq + 1).sum())
test = sample_events(500)


@torch.no_grad()
def recall(k=50):
    s = users(test[1]) @ items(torch.arange(N_ITEM)).t()
    return (s.topk(k, 1).indices == test[2][:, None]).any(1).float().mean().item()


print(f"start R@50 {recall():.3f} (random {50 / N_ITEM:.3f})")
BS = 256
for epoch in range(6):
    order, total = torch.randperm(len(Y)), 0.0
    for i in range(0, len(Y) - BS + 1, BS):
        b = order[i:i + BS]
        y = Y[b]
        logits = users(Hs[b]) @ items(y).t() / TEMP - log_q[y][None]
        twin = (y[:, None] == y[None]) & ~torch.eye(BS, dtype=torch.bool)
        logits = logits.masked_fill(twin, -1e4)
        loss = F.cross_entropy(logits, torch.arange(BS), reduction="sum")
        opt_sparse.zero_grad()
        opt_dense.zero_grad()
        loss.backward()
        opt_sparse.step()
        opt_dense.step()
        total += loss.item()
        if (i // BS) % 45 == 0:
            print(f"  epoch {epoch} iter {i // BS:2d} sum-loss {loss.item():.1f}")
    print(f"epoch {epoch} per-example {total / (len(Y) // BS * BS):.4f} R@50 {recall():.3f}")
