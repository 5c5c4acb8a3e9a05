import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE, PATCH, CLASSES = 24, 6, 8


def shapes(n, seed):
    g = torch.Generator().manual_seed(seed)
    side = SIZE // PATCH
    label = torch.randint(CLASSES, (n,), generator=g)
    order = torch.rand(n, side * side, generator=g).argsort(1)
    tilted = (order < (2 * label + 1)[:, None]).float().view(n, side, side)
    tilted = tilted.repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
    yy, xx = torch.meshgrid(torch.arange(SIZE).float(), torch.arange(SIZE).float(), indexing="ij")
    phase = (6.28 * torch.rand(n, side, side, generator=g)).repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
    wave = tilted * torch.cos(1.05 * yy + phase) + (1 - tilted) * torch.cos(1.05 * xx + phase)
    img = torch.stack([wave, 0.5 * wave, -wave], 1)
    return img + 0.2 * torch.randn(img.shape, generator=g), label


class MLP(nn.Sequential):
    def __init__(self, d):
        super().__init__(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))


class EncoderBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(d)
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.norm2 = nn.LayerNorm(d)
        self.mlp = MLP(d)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        h = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(h.transpose(1, 2).reshape(B, N, C))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, d=64, depth=3, heads=4):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, d, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d))
        self.pos_embed = nn.Parameter(torch.zeros(1, (SIZE // PATCH) ** 2 + 1, d))
        self.blocks = nn.Sequential(*[EncoderBlock(d, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, CLASSES)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.apply(self._init_weights)

    def _init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, 0.02)
            if m.bias is not None:
                nn.init.zeros_(m.bias)

    def forward(self, img):
        x = self.patch_embed(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


if __name__ == "__main__":
    torch.manual_seed(17)
    train = DataLoader(TensorDataset(*shapes(1600, 1)), batch_size=32, shuffle=True, drop_last=True)
    test_x, test_y = shapes(400, 2)
    model = ViT()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-4, total_steps=3 * len(train), pct_start=0.15)
    n = 0
    for epoch in range(3):
        model.train()
        for x, y in train:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if n % 10 == 0:
                print(f"epoch {epoch} step {n} loss {loss.item():.4f}")
            n += 1
        model.eval()
        with torch.no_grad():
            acc = (model(test_x).argmax(1) == test_y).float().mean().item()
        print(f"epoch {epoch} accuracy {acc:.3f}")
