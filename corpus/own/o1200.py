import argparse
import math
import time
import torch
import torch.nn as nn


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=1000)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--dim", type=int, default=96)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.0001)
    p.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


GRID, PATCH = (16, 4)
SIDE = GRID // PATCH


def simulate(n, gen):
    k = torch.fft.fftfreq(GRID) * GRID
    power = torch.exp(-0.15 * (k[:, None] ** 2 + k[None, :] ** 2))
    noise = torch.randn(n, 2, GRID, GRID, generator=gen)
    field = torch.fft.ifft2(torch.fft.fft2(noise) * power).real
    field = field / field.std(dim=(2, 3), keepdim=True)
    nxt = torch.empty_like(field)
    half = GRID // 2
    nxt[:, :, :half] = field[:, :, :half].roll(4, dims=-1)
    nxt[:, :, half:] = field[:, :, half:].roll(-4, dims=-1)
    nxt[:, 0] = nxt[:, 0] + 0.8 * torch.relu(nxt[:, 1])
    return (field, nxt)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.bias = nn.Parameter(torch.zeros(heads, SIDE, SIDE))
        r, c = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        r, c = (r.flatten(), c.flatten())
        self.register_buffer("dr", (r[:, None] - r[None, :]) % SIDE, persistent=False)
        self.register_buffer("dc", (c[:, None] - c[None, :]) % SIDE, persistent=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)
        scores = scores + self.bias[:, self.dr, self.dc]
        out = scores.softmax(-1) @ v
        return self.proj(out.transpose(1, 2).reshape(b, n, d))


class Emulator(nn.Module):
    def __init__(self, dim, depth, heads):
        super().__init__()
        self.patchify = nn.Linear(2 * PATCH * PATCH, dim)
        self.pos = nn.Parameter(torch.randn(SIDE * SIDE, dim) * 0.2)
        self.att = nn.ModuleList([Attention(dim, heads) for _ in range(depth)])
        self.mlp = nn.ModuleList(
            [
                nn.Sequential(
                    nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim)
                )
                for _ in range(depth)
            ]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth + 1)])
        self.out = nn.Linear(dim, 2 * PATCH * PATCH)

    def forward(self, f):
        b = f.size(0)
        x = (
            f.view(b, 2, SIDE, PATCH, SIDE, PATCH)
            .permute(0, 2, 4, 1, 3, 5)
            .reshape(b, SIDE * SIDE, -1)
        )
        x = self.patchify(x) + self.pos
        for att, mlp, norm in zip(self.att, self.mlp, self.norms):
            x = x + att(norm(x))
            x = x + mlp(x)
        y = self.out(self.norms[-1](x))
        return (
            y.view(b, SIDE, SIDE, 2, PATCH, PATCH)
            .permute(0, 3, 1, 4, 2, 5)
            .reshape(b, 2, GRID, GRID)
        )


def latitude_weights():
    lat = torch.linspace(-60, 60, GRID)
    w = torch.cos(torch.deg2rad(lat))
    return (w / w.mean())[None, None, :, None]


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed + 1)
    weights = latitude_weights()
    half = args.precision == "bf16"
    model = Emulator(args.dim, args.depth, args.heads)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01
    )
    start = time.time()
    for step in range(1, args.steps + 1):
        now, later = simulate(args.batch, gen)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            pred = model(now)
        loss = ((pred.float() - later) ** 2 * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 100 == 0:
            print(f"step {step:4d} loss {loss.item():.4f} ({time.time() - start:.1f}s)")
    model.eval()
    with torch.no_grad():
        now, later = simulate(256, torch.Generator().manual_seed(999))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            pred = model(now)
        rmse = ((pred.float() - later) ** 2 * weights).mean().sqrt()
        persistence = ((now - later) ** 2 * weights).mean().sqrt()
    print(f"val weighted rmse {rmse:.4f}  persistence {persistence:.4f}")


if __name__ == "__main__":
    main()
