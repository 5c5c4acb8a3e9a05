import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def make_shard(kind, n, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    a = torch.rand(n, 4, 1, 1, generator=g)
    if kind == 0:
        ang = a[:, 0] * 3.1416
        img = torch.sin((xx * ang.cos() + yy * ang.sin()) * (3 + 9 * a[:, 1]) + 6.28 * a[:, 2])
    elif kind == 1:
        cx, cy = a[:, 0] * 1.4 - 0.7, a[:, 1] * 1.4 - 0.7
        img = 2 * torch.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / (0.02 + 0.15 * a[:, 2])) - 1
    elif kind == 2:
        f = (2 + 4 * a[:, 0]).round()
        img = torch.sign(torch.sin(f * 3.1416 * xx + 6.28 * a[:, 1])) * torch.sign(torch.sin(f * 3.1416 * yy + 6.28 * a[:, 2]))
    else:
        r = (xx ** 2 + yy ** 2).sqrt()
        img = torch.where((r - 0.2 - 0.6 * a[:, 0]).abs() < 0.08 + 0.1 * a[:, 1], 1.0, -1.0)
    img = img + 0.05 * torch.randn(img.shape, generator=g)
    return img.unsqueeze(1).float()


class Quantizer(nn.Module):
    def __init__(self, n_codes, dim, decay=0.97, eps=1e-5):
        super().__init__()
        self.decay, self.eps, self.n_codes = decay, eps, n_codes
        w = torch.randn(n_codes, dim) * 0.5
        self.register_buffer("codes", w)
        self.register_buffer("counts", torch.ones(n_codes))
        self.register_buffer("sums", w.clone())

    @torch.no_grad()
    def update(self, flat, idx):
        onehot = F.one_hot(idx, self.n_codes).type_as(flat)
        n = onehot.sum(0)
        s = onehot.t() @ flat
        dist.all_reduce(n)
        dist.all_reduce(s)
        self.counts.mul_(self.decay).add_(n, alpha=1 - self.decay)
        self.sums.mul_(self.decay).add_(s, alpha=1 - self.decay)
        total = self.counts.sum()
        smoothed = (self.counts + self.eps) / (total + self.n_codes * self.eps) * total
        self.codes.copy_(self.sums / smoothed.unsqueeze(1))

    def forward(self, z):
        b, d, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, d)
        idx = torch.cdist(flat.detach(), self.codes).argmin(1)
        q = self.codes[idx].clone()
        if self.training:
            self.update(flat.detach(), idx)
        q = q.view(b, h, w, d).permute(0, 3, 1, 2)
        commit = F.mse_loss(z, q)
        return z + (q - z).detach(), commit


class VQVAE(nn.Module):
    def __init__(self, width=32, dim=16, n_codes=96):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1), nn.GELU(),
            nn.Conv2d(width, width, 4, 2, 1), nn.GELU(),
            nn.Conv2d(width, width, 3, 1, 1), nn.GELU(),
            nn.Conv2d(width, dim, 1))
        self.vq = Quantizer(n_codes, dim)
        self.dec = nn.Sequential(
            nn.Conv2d(dim, width, 3, 1, 1), nn.GELU(),
            nn.ConvTranspose2d(width, width, 4, 2, 1), nn.GELU(),
            nn.ConvTranspose2d(width, width, 4, 2, 1), nn.GELU(),
            nn.Conv2d(width, 1, 3, 1, 1))

    def forward(self, x):
        q, commit = self.vq(self.enc(x))
        return self.dec(q), commit


def worker(rank, world, port, args):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    net = VQVAE()
    model = DDP(net, broadcast_buffers=False)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)

    my_shards = range(rank, 4, world)
    data = torch.cat([make_shard(k, 1500, 10 + k) for k in my_shards])
    held_out = torch.cat([make_shard(k, 64, 90 + k) for k in range(4)])
    g = torch.Generator().manual_seed(args.seed + 100 * rank)

    for step in range(args.steps):
        x = data[torch.randint(len(data), (args.batch,), generator=g)]
        out, commit = model(x)
        rec = F.mse_loss(out, x)
        loss = rec + 0.25 * commit
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 25 == 0 or step == args.steps - 1:
            mean = rec.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                net.eval()
                with torch.no_grad():
                    val = F.mse_loss(net(held_out)[0], held_out)
                net.train()
                print(f"step {step:4d} loss {mean.item() / world:.4f} val {val.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=180)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--world", type=int, default=2)
    args = ap.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(args.world, port, args), nprocs=args.world)
