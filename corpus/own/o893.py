import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import ViTConfig, ViTModel

torch.manual_seed(19)


def blobs(n, g):
    y = torch.randint(0, 4, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    th = torch.tensor([0.0, 0.785, 1.571, 2.356])[y][:, None, None]
    ph = 6.28 * torch.rand(n, 1, 1, generator=g)
    img = torch.sin((xx * th.cos() + yy * th.sin()) * 1.2 + ph)
    return (img + 0.3 * torch.randn(n, 16, 16, generator=g))[:, None], y


cfg = ViTConfig(hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=16, patch_size=4, num_channels=1, initializer_range=0.1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
backbone = ViTModel(cfg, add_pooling_layer=False).requires_grad_(False).eval()
head = nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 256), nn.GELU(), nn.Linear(256, 4))
momentum = [torch.zeros_like(p) for p in head.parameters()]
g = torch.Generator().manual_seed(23)
total = 350
for it in range(total):
    x, y = blobs(64, g)
    with torch.no_grad():
        feats = backbone(pixel_values=x).last_hidden_state[:, 1:]
    logits = head(feats).mean(1)
    loss = F.cross_entropy(logits, y)
    grads = torch.autograd.grad(loss, list(head.parameters()))
    lr = 2e-3 * (1 - it / total)
    with torch.no_grad():
        for p, m, d in zip(head.parameters(), momentum, grads):
            step = (0.9 * m + 0.1 * d).sign()
            m.mul_(0.99).add_(d, alpha=0.01)
            p.sub_(lr * step)
    if it % 50 == 0:
        print(f"[{it:03d}] ce={loss.item():.4f}")
x, y = blobs(800, g)
with torch.no_grad():
    acc = (head(backbone(pixel_values=x).last_hidden_state[:, 1:]).mean(1).argmax(-1) == y).float().mean()
print(f"held-out accuracy {acc.item():.3f}")
