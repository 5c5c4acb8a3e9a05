import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)


def sincos_1d(n, dim):
    omega = 1.0 / 10000 ** (torch.arange(dim // 2) / (dim / 2))
    out = torch.arange(n).float()[:, None] * omega
    return torch.cat([out.sin(), out.cos()], dim=1)


def sincos_2d(grid, dim):
    one = sincos_1d(grid, dim // 2)
    rows = one[:, None].expand(grid, grid, -1)
    cols = one[None].expand(grid, grid, -1)
    return torch.cat([rows, cols], dim=-1).reshape(1, grid * grid, dim)


def block(dim, heads):
    return nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)


class MaskedAutoencoder(nn.Module):
    def __init__(self, img_size=16, patch_size=4, dim=64, depth=2, dec_dim=48, dec_depth=1, norm_pix_loss=True):
        super().__init__()
        self.p, self.grid = patch_size, img_size // patch_size
        self.norm_pix_loss = norm_pix_loss
        self.patch_embed = nn.Linear(patch_size ** 2, dim)
        self.pos_embed = nn.Parameter(sincos_2d(self.grid, dim), requires_grad=False)
        self.blocks = nn.ModuleList([block(dim, 4) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.decoder_embed = nn.Linear(dim, dec_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dec_dim))
        self.decoder_pos_embed = nn.Parameter(sincos_2d(self.grid, dec_dim), requires_grad=False)
        self.decoder_blocks = nn.ModuleList([block(dec_dim, 4) for _ in range(dec_depth)])
        self.decoder_norm = nn.LayerNorm(dec_dim)
        self.decoder_pred = nn.Linear(dec_dim, patch_size ** 2)
        nn.init.normal_(self.mask_token, std=0.02)

    def patchify(self, imgs):
        B = imgs.shape[0]
        x = imgs.reshape(B, self.grid, self.p, self.grid, self.p)
        return x.permute(0, 1, 3, 2, 4).reshape(B, self.grid ** 2, self.p ** 2)

    def random_masking(self, x, mask_ratio):
        N, L, D = x.shape
        len_keep = int(L * (1 - mask_ratio))
        noise = torch.rand(N, L)
        ids_shuffle = torch.argsort(noise, dim=1)
        ids_restore = torch.argsort(ids_shuffle, dim=1)
        ids_keep = ids_shuffle[:, :len_keep]
        x_masked = torch.gather(x, 1, ids_keep.unsqueeze(-1).repeat(1, 1, D))
        mask = torch.ones(N, L)
        mask[:, :len_keep] = 0
        return x_masked, torch.gather(mask, 1, ids_restore), ids_restore

    def forward(self, imgs, mask_ratio=0.75):
        patches = self.patchify(imgs)
        x = self.patch_embed(patches) + self.pos_embed
        x, mask, ids_restore = self.random_masking(x, mask_ratio)
        for blk in self.blocks:
            x = blk(x)
        x = self.decoder_embed(self.norm(x))
        fill = self.mask_token.repeat(x.shape[0], ids_restore.shape[1] - x.shape[1], 1)
        x = torch.cat([x, fill], dim=1)
        x = torch.gather(x, 1, ids_restore.unsqueeze(-1).repeat(1, 1, x.shape[2])) + self.decoder_pos_embed
        for blk in self.decoder_blocks:
            x = blk(x)
        pred = self.decoder_pred(self.decoder_norm(x))
        target = patches
        if self.norm_pix_loss:
            mean = target.mean(dim=-1, keepdim=True)
            var = target.var(dim=-1, keepdim=True)
            target = (target - mean) / (var + 1e-6) ** 0.5
        loss = (pred - target).pow(2).mean(-1)
        return (loss * mask).sum() / mask.sum()

    def forward_features(self, imgs):
        x = self.patch_embed(self.patchify(imgs)) + self.pos_embed
        for blk in self.blocks:
            x = blk(x)
        return self.norm(x).mean(1)


def waves(n):
    y = torch.randint(0, 6, (n,))
    theta = y.float() * torch.pi / 6
    phase = 0.2 * torch.randn(n)
    rr, cc = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    arg = 0.8 * (cc * theta.cos().view(-1, 1, 1) + rr * theta.sin().view(-1, 1, 1))
    return torch.sin(arg + phase.view(-1, 1, 1)) + 0.1 * torch.randn(n, 16, 16), y


model = MaskedAutoencoder()
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
steps = 280
for step in range(steps):
    for group in opt.param_groups:
        group["lr"] = 2e-3 * min((step + 1) / 20, 1 - 0.9 * step / steps)
    imgs, _ = waves(40)
    loss = model(imgs)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0 or step == steps - 1:
        print(f"mae step {step} loss {loss.item():.4f}")

for p in model.parameters():
    p.requires_grad = False
probe = nn.Sequential(nn.BatchNorm1d(64, affine=False), nn.Linear(64, 6))
nn.init.trunc_normal_(probe[1].weight, std=0.01)
opt = torch.optim.SGD(probe.parameters(), lr=0.3, momentum=0.9)
model.eval()
for step in range(80):
    imgs, y = waves(64)
    with torch.no_grad():
        feats = model.forward_features(imgs)
    loss = F.cross_entropy(probe(feats), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 79:
        print(f"probe step {step} loss {loss.item():.4f}")
probe.eval()
with torch.no_grad():
    imgs, y = waves(400)
    print(f"probe acc {(probe(model.forward_features(imgs)).argmax(1) == y).float().mean().item():.3f}")
