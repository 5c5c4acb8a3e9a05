import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--image-size", type=int, default=16)
parser.add_argument("--patch", type=int, default=4)
parser.add_argument("--dim", type=int, default=64)
parser.add_argument("--decoder-dim", type=int, default=48)
parser.add_argument("--masking-ratio", type=float, default=0.5)
parser.add_argument("--steps", type=int, default=240)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=3e-3)
args = parser.parse_args()

torch.manual_seed(11)


def textures(n, size):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    freq = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
    pick = freq[torch.randint(len(freq), (n,))]
    phase = torch.rand(n, 1, 1) * 6.2832
    arg = pick[:, 0, None, None] * xx + pick[:, 1, None, None] * yy
    img = torch.sin(arg * 6.2832 / size + phase)
    return img + 0.05 * torch.randn_like(img)


def patchify(img, p):
    b, h, w = img.shape
    x = img.view(b, h // p, p, w // p, p).permute(0, 1, 3, 2, 4)
    return x.reshape(b, (h // p) * (w // p), p * p)


def encoder(dim, depth, heads):
    layers = [nn.TransformerEncoderLayer(dim, heads, dim * 3, dropout=0.0, batch_first=True, norm_first=True)
              for _ in range(depth)]
    return nn.Sequential(*layers, nn.LayerNorm(dim))


class MAE(nn.Module):
    def __init__(self, num_patches, pixels, dim, decoder_dim, masking_ratio):
        super().__init__()
        self.masking_ratio = masking_ratio
        self.to_tokens = nn.Linear(pixels, dim)
        self.pos = nn.Parameter(torch.randn(1, num_patches, dim) * 0.02)
        self.encoder = encoder(dim, 2, 4)
        self.enc_to_dec = nn.Linear(dim, decoder_dim)
        self.mask_token = nn.Parameter(torch.randn(decoder_dim) * 0.02)
        self.decoder_pos = nn.Embedding(num_patches, decoder_dim)
        self.decoder = encoder(decoder_dim, 1, 4)
        self.to_pixels = nn.Linear(decoder_dim, pixels)

    def forward(self, patches):
        b, n, _ = patches.shape
        tokens = self.to_tokens(patches) + self.pos
        num_masked = int(self.masking_ratio * n)
        order = torch.rand(b, n).argsort(dim=-1)
        masked_indices, unmasked_indices = order[:, :num_masked], order[:, num_masked:]
        rows = torch.arange(b)[:, None]

        encoded = self.encoder(tokens[rows, unmasked_indices])
        visible = self.enc_to_dec(encoded) + self.decoder_pos(unmasked_indices)
        hidden = self.mask_token.expand(b, num_masked, -1) + self.decoder_pos(masked_indices)

        decoder_tokens = torch.zeros(b, n, visible.shape[-1])
        decoder_tokens[rows, unmasked_indices] = visible
        decoder_tokens[rows, masked_indices] = hidden
        decoded = self.decoder(decoder_tokens)

        mask_tokens = decoded[:, :masked_indices.shape[1]]
        pred = self.to_pixels(mask_tokens)
        target = patches[rows, masked_indices]
        return ((pred - target) ** 2).mean(), target.var()


n_patches = (args.image_size // args.patch) ** 2
mae = MAE(n_patches, args.patch ** 2, args.dim, args.decoder_dim, args.masking_ratio)
optim = torch.optim.AdamW(mae.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.05)
sched = torch.optim.lr_scheduler.OneCycleLR(optim, max_lr=args.lr, total_steps=args.steps, pct_start=0.1)
held_out = patchify(textures(256, args.image_size), args.patch)

print("params", sum(p.numel() for p in mae.parameters()))
for it in range(1, args.steps + 1):
    batch = patchify(textures(args.batch_size, args.image_size), args.patch)
    loss, _ = mae(batch)
    optim.zero_grad(set_to_none=True)
    loss.backward()
    optim.step()
    sched.step()
    if it == 1 or it % 20 == 0:
        print(f"iter {it:4d} | mse {loss.item():.4f} | lr {sched.get_last_lr()[0]:.2e}")

mae.eval()
with torch.no_grad():
    mse, var = mae(held_out)
print(f"held-out mse {mse.item():.4f} pixel variance {var.item():.4f}")
