import torch
import torch.nn as nn

IDS, RAW, EMB = 60, 64, 24


class Gallery:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.identity = torch.randn(IDS, 10, generator=self.g)
        self.lens = torch.randn(20, RAW, generator=self.g) / 20 ** 0.5

    def shots(self, ids):
        nuisance = 1.6 * torch.randn(len(ids), 10, generator=self.g)
        z = torch.cat([self.identity[ids], nuisance], 1)
        return torch.tanh(z @ self.lens) + 0.05 * torch.randn(len(ids), RAW, generator=self.g)

    def pk_batch(self, pool, p=12, k=6):
        ids = pool[torch.randperm(len(pool), generator=self.g)[:p]].repeat_interleave(k)
        return self.shots(ids), ids


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(RAW, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, EMB))

    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=-1)


def distances(e):
    gap = e.unsqueeze(0) - e.unsqueeze(1)
    return gap.pow(2).sum(-1).add(1e-10).sqrt()


def batch_hard(e, ids, margin=0.3):
    d = distances(e)
    same = ids[:, None] == ids[None, :]
    farthest_pos = (d * same).amax(1)
    nearest_neg = d.masked_fill(same, 10.0).amin(1)
    return torch.nn.functional.softplus((farthest_pos - nearest_neg + margin) * 4).mean() / 4


@torch.no_grad()
def rank1(net, gallery, pool):
    ref, probe = pool.repeat_interleave(3), pool.repeat_interleave(3)
    a, b = net(gallery.shots(ref)), net(gallery.shots(probe))
    return (ref[(b @ a.T).argmax(1)] == probe).float().mean().item()


def main(seed=37, steps=900):
    torch.manual_seed(seed)
    gallery = Gallery(seed)
    train_ids, test_ids = torch.arange(0, 45), torch.arange(45, IDS)
    net = Embedder()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    print(f"before training rank-1 {rank1(net, gallery, test_ids):.4f}")
    for step in range(steps):
        x, ids = gallery.pk_batch(train_ids)
        loss = batch_hard(net(x), ids)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 45 == 0 or step == steps - 1:
            print(f"step {step} triplet loss {loss.item():.4f}", flush=True)
    print(f"new identities rank-1 {rank1(net, gallery, test_ids):.4f}")


if __name__ == "__main__":
    main()
