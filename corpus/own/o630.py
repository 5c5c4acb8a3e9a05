import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)


class Mlp(nn.Module):
    def __init__(self, in_features, hidden_features):
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_features, in_features)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio=4.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class VisionTransformer(nn.Module):
    def __init__(self, img_size=16, patch_size=4, in_chans=3, num_classes=8, embed_dim=48, depth=2, num_heads=4):
        super().__init__()
        self.embed_dim = embed_dim
        self.patch_embed = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)
        num_patches = (img_size // patch_size) ** 2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.randn(1, num_patches + 1, embed_dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(embed_dim, num_heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.head = nn.Linear(embed_dim, num_classes)
        nn.init.trunc_normal_(self.cls_token, std=0.02)

    def reset_classifier(self, num_classes):
        self.num_classes = num_classes
        self.head = nn.Linear(self.embed_dim, num_classes)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward_features(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self.pos_embed
        return self.norm(self.blocks(x))

    def forward(self, x):
        return self.head(self.forward_features(x)[:, 0])


def gratings(n, g):
    angle_id = torch.randint(0, 4, (n,), generator=g)
    freq_id = torch.randint(0, 2, (n,), generator=g)
    tint = torch.randint(0, 3, (n,), generator=g)
    theta = angle_id.float() * math.pi / 4
    freq = torch.where(freq_id == 0, 0.7, 1.5)
    phase = torch.rand(n, generator=g) * 2 * math.pi
    ys, xs = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    arg = xs * theta.cos().view(-1, 1, 1) + ys * theta.sin().view(-1, 1, 1)
    wave = torch.sin(arg * freq.view(-1, 1, 1) + phase.view(-1, 1, 1))
    gain = 0.6 + 0.6 * F.one_hot(tint, 3).float()
    img = wave[:, None] * gain[:, :, None, None] + 0.2 * torch.randn(n, 3, 16, 16, generator=g)
    return img, angle_id, freq_id, tint


def param_groups(model, lr, head_lr, weight_decay):
    head, decay, no_decay = [], [], []
    for name, p in model.named_parameters():
        if name.startswith("head."):
            head.append(p)
        elif p.ndim <= 1 or name in ("cls_token", "pos_embed"):
            no_decay.append(p)
        else:
            decay.append(p)
    return [
        {"params": decay, "lr": lr, "weight_decay": weight_decay},
        {"params": no_decay, "lr": lr, "weight_decay": 0.0},
        {"params": head, "lr": head_lr, "weight_decay": 0.0},
    ]


g = torch.Generator().manual_seed(11)
imgs, ang, frq, tnt = gratings(2560, g)
val_imgs, val_ang, val_frq, val_tnt = gratings(512, g)


def fit(model, optimizer, targets, val_targets, epochs, batch_size=64, tag=""):
    step = 0
    for epoch in range(epochs):
        model.train()
        perm = torch.randperm(len(imgs), generator=g)
        for idx in perm.split(batch_size):
            logits = model(imgs[idx])
            loss = F.cross_entropy(logits, targets[idx])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 20 == 0:
                print(f"{tag} step {step} loss {loss.item():.4f}")
            step += 1
        model.eval()
        with torch.no_grad():
            acc = (model(val_imgs).argmax(-1) == val_targets).float().mean().item()
        print(f"{tag} epoch {epoch} val_acc {acc:.3f}")


model = VisionTransformer(num_classes=8)
optimizer = torch.optim.AdamW(param_groups(model, 1e-3, 1e-3, 0.05))
fit(model, optimizer, ang * 2 + frq, val_ang * 2 + val_frq, epochs=2, tag="pretrain")

optimizer = torch.optim.AdamW(param_groups(model, 2e-5, 3e-3, 0.05))
model.reset_classifier(num_classes=12)
fit(model, optimizer, ang * 3 + tnt, val_ang * 3 + val_tnt, epochs=4, tag="finetune")
