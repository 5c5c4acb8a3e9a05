import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)

CTX, VOCAB, EMBED = 10, 64, 32


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d_model)
        self.attn = nn.MultiheadAttention(d_model, n_head, batch_first=True)
        self.ln_2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, d_model * 2), nn.GELU(), nn.Linear(d_model * 2, d_model))

    def forward(self, x):
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class TextTransformer(nn.Module):
    def __init__(self, width=48, layers=2, heads=4):
        super().__init__()
        self.token_embedding = nn.Embedding(VOCAB, width)
        self.positional_embedding = nn.Parameter(torch.empty(CTX, width))
        self.resblocks = nn.Sequential(*[ResidualAttentionBlock(width, heads) for _ in range(layers)])
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, EMBED))
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        nn.init.normal_(self.text_projection, std=width ** -0.5)

    def forward(self, text):
        x = self.token_embedding(text) + self.positional_embedding
        x = self.ln_final(self.resblocks(x))
        x = x[torch.arange(x.shape[0]), text.argmax(dim=-1)]
        return x @ self.text_projection


class VisualTower(nn.Module):
    def __init__(self, width=48, layers=2, heads=4):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 4, 4, bias=False)
        self.class_embedding = nn.Parameter(width ** -0.5 * torch.randn(width))
        self.positional_embedding = nn.Parameter(width ** -0.5 * torch.randn(10, width))
        self.ln_pre = nn.LayerNorm(width)
        self.resblocks = nn.Sequential(*[ResidualAttentionBlock(width, heads) for _ in range(layers)])
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(width ** -0.5 * torch.randn(width, EMBED))

    def forward(self, x):
        x = self.conv1(x).flatten(2).transpose(1, 2)
        cls = self.class_embedding.expand(x.shape[0], 1, -1)
        x = torch.cat([cls, x], dim=1) + self.positional_embedding
        x = self.resblocks(self.ln_pre(x))
        return self.ln_post(x[:, 0]) @ self.proj


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = VisualTower()
        self.text = TextTransformer()
        self.logit_scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))

    def forward(self, image, text):
        return {
            "image_features": F.normalize(self.visual(image), dim=-1),
            "text_features": F.normalize(self.text(text), dim=-1),
            "logit_scale": self.logit_scale.exp(),
        }


class ClipLoss(nn.Module):
    def forward(self, image_features, text_features, logit_scale):
        logits_per_image = logit_scale * image_features @ text_features.t()
        labels = torch.arange(logits_per_image.shape[0])
        return (F.cross_entropy(logits_per_image, labels) + F.cross_entropy(logits_per_image.t(), labels)) / 2


COLORS = torch.rand(6, 3) * 2 - 1
TEXTURES = torch.randn(8, 3, 12, 12)
PLACES = [(0, 0), (0, 6), (6, 0), (6, 6)]


def render(n):
    color = torch.randint(0, 6, (n,))
    tex = torch.randint(0, 8, (n,))
    place = torch.randint(0, 4, (n,))
    img = 0.5 * TEXTURES[tex] + 0.3 * torch.randn(n, 3, 12, 12)
    for i in range(n):
        r, c = PLACES[place[i]]
        img[i, :, r:r + 6, c:c + 6] += 2.0 * COLORS[color[i]][:, None, None]
    text = torch.randint(20, 62, (n, CTX))
    text[:, 0] = 62
    slots = torch.stack([torch.randperm(8)[:3] + 1 for _ in range(n)])
    words = torch.stack([color, 6 + tex, 14 + place], dim=1)
    text.scatter_(1, slots, words)
    text[:, -1] = 63
    return img, text, color * 32 + tex * 4 + place


model = CLIP()
loss_fn = ClipLoss()
exclude = lambda n, p: p.ndim < 2 or "bn" in n or "ln" in n or "bias" in n or "logit_scale" in n
named = list(model.named_parameters())
optimizer = torch.optim.AdamW(
    [{"params": [p for n, p in named if exclude(n, p)], "weight_decay": 0.0},
     {"params": [p for n, p in named if not exclude(n, p)], "weight_decay": 0.1}],
    lr=1.5e-3, betas=(0.9, 0.98), eps=1e-6)

steps, warmup, accum_freq, micro = 220, 20, 2, 20
val_img, val_txt, val_id = render(128)


@torch.no_grad()
def retrieval():
    model.eval()
    out = model(val_img, val_txt)
    sim = out["image_features"] @ out["text_features"].t()
    model.train()
    return (val_id[sim.argmax(1)] == val_id).float().mean().item()


for step in range(steps):
    lr = 1.5e-3 * (step + 1) / warmup if step < warmup else 0.75e-3 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
    for group in optimizer.param_groups:
        group["lr"] = lr
    accum_images, accum_texts = [], []
    accum_features = {"image_features": [], "text_features": []}
    with torch.no_grad():
        for _ in range(accum_freq):
            images, texts, _ = render(micro)
            out = model(images, texts)
            accum_images.append(images)
            accum_texts.append(texts)
            for key in accum_features:
                accum_features[key].append(out[key])
    optimizer.zero_grad()
    for j in range(accum_freq):
        out = model(accum_images[j], accum_texts[j])
        cached_images = accum_features["image_features"]
        cached_texts = accum_features["text_features"]
        image_features = torch.cat(cached_images[:j] + [out["image_features"]] + cached_images[j + 1:])
        text_features = torch.cat(cached_texts[:j] + [out["text_features"]] + cached_texts[j + 1:])
        loss = loss_fn(image_features, text_features, out["logit_scale"])
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, math.log(100))
    if step % 20 == 0 or step == steps - 1:
        print(f"step {step} loss {loss.item():.4f} scale {out['logit_scale'].item():.2f} r@1 {retrieval():.3f}")
