import torch
import torch.nn as nn
import torch.nn.functional as F

DEPTH, WIDTH, HEADS, SYMBOLS, LENGTH = 4, 64, 4, 12, 20


def brackets(n, gen):
    x = torch.randint(SYMBOLS, (n, LENGTH), generator=gen)
    key = torch.randint(SYMBOLS, (n, 1), generator=gen)
    y = ((x * 5 + key * 7) % SYMBOLS)
    return torch.cat((key, x), dim=1), y


class EncoderBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.attention = nn.MultiheadAttention(d, h, batch_first=True)
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleDict({"word": nn.Embedding(SYMBOLS, WIDTH), "place": nn.Embedding(LENGTH + 1, WIDTH)})
        self.encoder = nn.ModuleList(EncoderBlock(WIDTH, HEADS) for _ in range(DEPTH))
        self.transform = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        self.classifier = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, ids):
        x = self.embeddings["word"](ids) + self.embeddings["place"].weight
        for block in self.encoder:
            x = block(x)
        return self.classifier(self.transform(x[:, 1:]))


def layerwise_groups(model, lr, decay=0.8, weight_decay=0.01):
    named = list(model.named_parameters())
    groups = []
    top = [p for n, p in named if n.startswith("classifier")]
    groups.append({"params": top, "lr": lr, "weight_decay": 0.0})
    for depth, i in enumerate(reversed(range(DEPTH))):
        rate = lr * decay ** (depth + 1)
        mine = [(n, p) for n, p in named if n.startswith(f"encoder.layer.{i}.") or n.startswith(f"encoder.{i}.mlp")]
        groups.append({"params": [p for n, p in mine if n.endswith("weight")], "lr": rate, "weight_decay": weight_decay})
        groups.append({"params": [p for n, p in mine if not n.endswith("weight")], "lr": rate, "weight_decay": 0.0})
    groups.append({"params": model.embeddings.parameters(), "lr": lr * decay ** (DEPTH + 1), "weight_decay": 0.0})
    return groups


if __name__ == "__main__":
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(32)
    model = Tagger()
    optimizer = torch.optim.AdamW(layerwise_groups(model, 2e-3))
    for step in range(240):
        ids, tags = brackets(32, gen)
        scores = model(ids)
        loss = F.cross_entropy(scores.flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0 or step == 239:
            print(f"[{step:03d}] loss={loss.item():.4f} acc={(scores.argmax(-1) == tags).float().mean():.3f}")
