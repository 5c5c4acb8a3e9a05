import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

COLORS = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1)]
SHAPES = ["square", "cross", "bar", "ring"]
PAD, COLOR0, SHAPE0, PLACE0, WORD0 = 0, 1, 6, 10, 14
VOCAB, CAP_LEN, RES = 24, 10, 16


def draw(canvas, shape, color, r, c):
    m = np.zeros((6, 6), dtype=np.float32)
    if shape == 0:
        m[:] = 1
    elif shape == 1:
        m[2:4], m[:, 2:4] = 1, 1
    elif shape == 2:
        m[2:4] = 1
    else:
        m[:] = 1
        m[2:4, 2:4] = 0
    for ch in range(3):
        canvas[ch, r : r + 6, c : c + 6] += m * color[ch]


def render(n, seed):
    rng = np.random.default_rng(seed)
    img = 0.15 * rng.standard_normal((n, 3, RES, RES)).astype(np.float32)
    cap = np.zeros((n, CAP_LEN), dtype=np.int64)
    for i in range(n):
        quads = rng.permutation(4)[:2]
        words = []
        for q in quads:
            s, k = rng.integers(len(SHAPES)), rng.integers(len(COLORS))
            r, c = (q // 2) * 8 + rng.integers(3), (q % 2) * 8 + rng.integers(3)
            draw(img[i], s, COLORS[k], r, c)
            words += [int(rng.integers(WORD0, VOCAB)), COLOR0 + k, SHAPE0 + s, PLACE0 + q]
        cap[i, : len(words)] = words
    return torch.from_numpy(img), torch.from_numpy(cap)


class Tower(nn.Module):
    def __init__(self, dim, length, layers):
        super().__init__()
        self.pos = nn.Parameter(0.2 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, pad=None):
        h = self.norm(self.body(x + self.pos, src_key_padding_mask=pad))
        if pad is None:
            return h.mean(1)
        keep = (~pad).unsqueeze(-1).float()
        return (h * keep).sum(1) / keep.sum(1)


class DualEncoder(nn.Module):
    def __init__(self, dim=64, emb=48):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, stride=4)
        self.words = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.vision = Tower(dim, (RES // 4) ** 2, 2)
        self.text = Tower(dim, CAP_LEN, 2)
        self.img_proj = nn.Linear(dim, emb, bias=False)
        self.txt_proj = nn.Linear(dim, emb, bias=False)
        self.log_scale = nn.Parameter(torch.tensor(np.log(1 / 0.07), dtype=torch.float32))

    def encode_image(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2)
        return F.normalize(self.img_proj(self.vision(x)), dim=-1)

    def encode_text(self, cap):
        x = self.text(self.words(cap), cap == PAD)
        return F.normalize(self.txt_proj(x), dim=-1)

    def forward(self, img, cap):
        scale = self.log_scale.exp().clamp(max=100)
        return scale * self.encode_image(img) @ self.encode_text(cap).T


def clip_loss(logits):
    target = torch.arange(len(logits))
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))


def parameter_groups(model, wd):
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decay, "weight_decay": wd}, {"params": rest, "weight_decay": 0.0}]


@torch.no_grad()
def retrieval(model, img, cap):
    model.eval()
    sim = model.encode_image(img) @ model.encode_text(cap).T
    rank = (sim > sim.diag()[:, None]).sum(1)
    loss = clip_loss(model(img, cap))
    model.train()
    return (rank == 0).float().mean().item(), (rank < 5).float().mean().item(), loss.item()


def main():
    torch.manual_seed(0)
    img, cap = render(4000, 0)
    v_img, v_cap = render(200, 1)
    model = DualEncoder()
    opt = torch.optim.AdamW(parameter_groups(model, 0.05), lr=1e-3, betas=(0.9, 0.98))
    steps = 170
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=steps, pct_start=0.15)
    for step in range(steps):
        ix = torch.randint(len(img), (48,))
        loss = clip_loss(model(img[ix], cap[ix]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"step {step:4d} loss {loss.item():.4f} scale {model.log_scale.exp().item():.1f}")
    r1, r5, vloss = retrieval(model, v_img, v_cap)
    print(f"image to caption among 200: R@1 {r1:.3f} R@5 {r5:.3f}, held-out loss {vloss:.4f}")


if __name__ == "__main__":
    main()
