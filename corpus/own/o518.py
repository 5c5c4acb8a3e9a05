import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 4
USERS, ITEMS, RANK = 1500, 800, 24
STEPS, BATCH = 500, 2048


def simulate(g):
    u = torch.randn(USERS, 6, generator=g)
    v = torch.randn(ITEMS, 6, generator=g)
    pop = -1.2 * torch.log1p(torch.arange(ITEMS).float() / 20)[torch.randperm(ITEMS, generator=g)]
    logits = 1.1 * u @ v.T + pop
    gumbel = -torch.log(-torch.log(torch.rand(USERS, ITEMS, generator=g).clamp(1e-9, 1 - 1e-7)))
    items = (logits + gumbel).topk(40, dim=1).indices
    items = items.gather(1, torch.rand(USERS, 40, generator=g).argsort(1))
    return items[:, :34], items[:, 34:]


class BPRMF(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, RANK, sparse=True)
        self.item = nn.Embedding(ITEMS, RANK, sparse=True)
        self.bias = nn.Embedding(ITEMS, 1, sparse=True)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, u, i, j):
        pu, qi, qj = self.user(u), self.item(i), self.item(j)
        bi, bj = self.bias(i).squeeze(-1), self.bias(j).squeeze(-1)
        margin = (pu * (qi - qj)).sum(-1) + bi - bj
        reg = pu.square().sum(-1) + qi.square().sum(-1) + qj.square().sum(-1)
        return margin, reg

    @torch.no_grad()
    def all_scores(self):
        return self.user.weight @ self.item.weight.T + self.bias.weight.T


def sample_negatives(users, seen, g):
    neg = torch.randint(ITEMS, users.shape, generator=g)
    bad = seen[users, neg]
    while bad.any():
        neg[bad] = torch.randint(ITEMS, (int(bad.sum()),), generator=g)
        bad = seen[users, neg]
    return neg


def evaluate(scores, seen, test):
    masked = scores.masked_fill(seen, float("-inf"))
    hits = torch.zeros(USERS, ITEMS, dtype=torch.bool).scatter_(1, test, True)
    top = masked.topk(20, 1).indices
    recall = hits.gather(1, top).float().sum(1).div(test.shape[1]).mean().item()
    negatives = ~(seen | hits)
    auc = 0.0
    for k in range(test.shape[1]):
        s = scores.gather(1, test[:, k:k + 1])
        auc += (((scores < s) & negatives).sum(1) / negatives.sum(1)).mean().item()
    return auc / test.shape[1], recall


def main():
    torch.manual_seed(SEED)
    g = torch.Generator().manual_seed(SEED)
    train, test = simulate(g)
    seen = torch.zeros(USERS, ITEMS, dtype=torch.bool).scatter_(1, train, True)
    pairs_u = torch.arange(USERS).repeat_interleave(train.shape[1])
    pairs_i = train.reshape(-1)

    model = BPRMF()
    opt = torch.optim.SparseAdam(list(model.parameters()), lr=8e-3)
    print("popularity baseline: auc %.4f recall@20 %.4f" % evaluate(
        seen.float().sum(0).expand(USERS, -1), seen, test))
    print("untrained: auc %.4f recall@20 %.4f" % evaluate(model.all_scores(), seen, test))
    for step in range(STEPS):
        pick = torch.randint(len(pairs_u), (BATCH,), generator=g)
        u, i = pairs_u[pick], pairs_i[pick]
        j = sample_negatives(u, seen, g)
        margin, reg = model(u, i, j)
        loss = -F.logsigmoid(margin).mean() + 2e-3 * reg.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 125 == 0 or step == STEPS - 1:
            auc, rec = evaluate(model.all_scores(), seen, test)
            print(f"step {step:4d} loss {loss.item():.4f} pairwise acc {(margin > 0).float().mean():.3f} "
                  f"| held-out auc {auc:.4f} recall@20 {rec:.4f}")


main()
