import torch
from torch import nn

torch.manual_seed(8)
SIZE, PATCH, CLASSES = 24, 6, 10
EPOCHS, PER_EPOCH, BATCH = 4, 40, 24


def draw(n, g):
    y = torch.randint(CLASSES, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    angle = y.float()[:, None, None] * 3.14159 / CLASSES
    phase = torch.rand(n, 1, 1, generator=g) * 6.28
    wave = torch.sin((xx * angle.cos() + yy * angle.sin()) * 0.9 + phase)
    colour = torch.rand(n, 3, 1, 1, generator=g)
    img = wave[:, None] * (0.5 + colour) + 1.5 * torch.randn(n, 3, SIZE, SIZE, generator=g)
    return img, y


class Attn(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a = (q @ k.transpose(-2, -1) * (C // self.heads) ** -0.5).softmax(-1)
        return self.proj((a @ v).transpose(1, 2).reshape(B, N, C))


class ViTBlock(nn.Module):
    def __init__(self, dim, heads, ratio=3):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attn(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, ratio * dim), nn.GELU(), nn.Linear(ratio * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, dim=72, depth=3, heads=4):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (SIZE // PATCH) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.Sequential(*[ViTBlock(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


g = torch.Generator().manual_seed(80)
test_x, test_y = draw(128, g)
net = ViT()
optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-1, total_steps=EPOCHS * PER_EPOCH, pct_start=0.2)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
for epoch in range(EPOCHS):
    net.train()
    running = 0.0
    for i in range(PER_EPOCH):
        x, y = draw(BATCH, g)
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.item()
        if i % 10 == 0:
            print(f"epoch {epoch} it {i} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
    net.eval()
    with torch.no_grad():
        acc = (net(test_x).argmax(1) == test_y).float().mean().item()
    print(f"epoch {epoch} mean loss {running / PER_EPOCH:.4f} test acc {acc:.3f}")
