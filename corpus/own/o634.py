import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(13)


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class TimestepEmbedder(nn.Module):
    def __init__(self, hidden_size, freq_size=64):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(freq_size, hidden_size), nn.SiLU(), nn.Linear(hidden_size, hidden_size))
        self.freq_size = freq_size

    def forward(self, t):
        half = self.freq_size // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half) / half)
        args = t[:, None] * 1000 * freqs[None]
        return self.mlp(torch.cat([args.cos(), args.sin()], dim=-1))


class LabelEmbedder(nn.Module):
    def __init__(self, num_classes, hidden_size, dropout_prob):
        super().__init__()
        self.embedding_table = nn.Embedding(num_classes + 1, hidden_size)
        self.num_classes = num_classes
        self.dropout_prob = dropout_prob

    def forward(self, labels, train):
        if train and self.dropout_prob > 0:
            drop = torch.rand(labels.shape[0]) < self.dropout_prob
            labels = torch.where(drop, self.num_classes, labels)
        return self.embedding_table(labels)


class DiTBlock(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.attn = nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)
        self.norm2 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, 4 * hidden_size), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * hidden_size, hidden_size))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden_size, 6 * hidden_size))

    def forward(self, x, c):
        s1, sc1, g1, s2, sc2, g2 = self.adaLN_modulation(c).chunk(6, dim=1)
        h = modulate(self.norm1(x), s1, sc1)
        x = x + g1.unsqueeze(1) * self.attn(h, h, h, need_weights=False)[0]
        return x + g2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), s2, sc2))


class FinalLayer(nn.Module):
    def __init__(self, hidden_size, patch_dim):
        super().__init__()
        self.norm_final = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(hidden_size, patch_dim)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden_size, 2 * hidden_size))

    def forward(self, x, c):
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        return self.linear(modulate(self.norm_final(x), shift, scale))


def get_2d_sincos_pos_embed(embed_dim, grid_size):
    ys, xs = torch.meshgrid(torch.arange(grid_size).float(), torch.arange(grid_size).float(), indexing="ij")
    omega = 1.0 / 10000 ** (torch.arange(embed_dim // 4) / (embed_dim / 4))
    parts = []
    for axis in (xs, ys):
        out = axis.reshape(-1, 1) * omega
        parts += [out.sin(), out.cos()]
    return torch.cat(parts, dim=1)


class DiT(nn.Module):
    def __init__(self, input_size=8, patch_size=2, hidden_size=64, depth=2, num_heads=4, num_classes=6):
        super().__init__()
        self.p = patch_size
        self.grid = input_size // patch_size
        self.x_embedder = nn.Linear(patch_size * patch_size, hidden_size)
        self.t_embedder = TimestepEmbedder(hidden_size)
        self.y_embedder = LabelEmbedder(num_classes, hidden_size, 0.1)
        self.pos_embed = nn.Parameter(torch.zeros(1, self.grid ** 2, hidden_size), requires_grad=False)
        self.blocks = nn.ModuleList([DiTBlock(hidden_size, num_heads) for _ in range(depth)])
        self.final_layer = FinalLayer(hidden_size, patch_size * patch_size)
        self.initialize_weights()

    def initialize_weights(self):
        def _basic_init(module):
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.constant_(module.bias, 0)
        self.apply(_basic_init)
        nn.init.normal_(self.y_embedder.embedding_table.weight, std=0.02)
        nn.init.normal_(self.t_embedder.mlp[0].weight, std=0.02)
        nn.init.normal_(self.t_embedder.mlp[2].weight, std=0.02)
        for block in self.blocks:
            nn.init.constant_(block.adaLN_modulation[-1].weight, 0)
            nn.init.constant_(block.adaLN_modulation[-1].bias, 0)
        nn.init.constant_(self.final_layer.adaLN_modulation[-1].weight, 0)
        nn.init.constant_(self.final_layer.adaLN_modulation[-1].bias, 0)
        nn.init.constant_(self.final_layer.linear.weight, 0)
        nn.init.constant_(self.final_layer.linear.bias, 0)

    def patchify(self, x):
        B = x.shape[0]
        x = x.reshape(B, self.grid, self.p, self.grid, self.p)
        return x.permute(0, 1, 3, 2, 4).reshape(B, self.grid ** 2, self.p ** 2)

    def unpatchify(self, x):
        B = x.shape[0]
        x = x.reshape(B, self.grid, self.grid, self.p, self.p)
        return x.permute(0, 1, 3, 2, 4).reshape(B, self.grid * self.p, self.grid * self.p)

    def forward(self, x, t, y):
        x = self.x_embedder(self.patchify(x)) + self.pos_embed
        c = self.t_embedder(t) + self.y_embedder(y, self.training)
        for block in self.blocks:
            x = block(x, c)
        return self.unpatchify(self.final_layer(x, c))


templates = F.interpolate(torch.randn(6, 1, 4, 4), size=8, mode="bilinear").squeeze(1)
templates = templates / templates.std(dim=(1, 2), keepdim=True)


def sample_data(n):
    y = torch.randint(0, 6, (n,))
    gain = 0.8 + 0.4 * torch.rand(n, 1, 1)
    return templates[y] * gain + 0.1 * torch.randn(n, 8, 8), y


@torch.no_grad()
def update_ema(ema, model, decay):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.lerp_(p, 1 - decay)


@torch.no_grad()
def euler_sample(net, y, n_steps=20):
    x = torch.randn(y.shape[0], 8, 8)
    for i in range(n_steps):
        t = torch.full((y.shape[0],), i / n_steps)
        x = x + net(x, t, y) / n_steps
    return x


model = DiT()
ema = copy.deepcopy(model).eval().requires_grad_(False)
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1.5e-3, weight_decay=0.0)
running = None
for step in range(340):
    x1, y = sample_data(32)
    x0 = torch.randn_like(x1)
    t = torch.sigmoid(torch.randn(32))
    xt = (1 - t.view(-1, 1, 1)) * x0 + t.view(-1, 1, 1) * x1
    pred = model(xt, t, y)
    loss = F.mse_loss(pred, x1 - x0)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    update_ema(ema, model, 0.98)
    running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
    if step % 30 == 0 or step == 339:
        print(f"step {step} loss {loss.item():.4f} avg {running:.4f}")
y = torch.arange(6).repeat(20)
err = (euler_sample(ema, y) - templates[y]).pow(2).mean().item()
print(f"sample error to class mean {err:.4f}")
