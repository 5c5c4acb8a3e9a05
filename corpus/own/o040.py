import argparse
import random
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()

torch.manual_seed(53)
random.seed(53)
NAMES = ["anna", "bert", "carla", "dora", "emil", "finn"]
VERBS = [["likes", "loves", "enjoys"], ["hates", "dislikes", "avoids"], ["sells", "trades", "offers"], ["paints", "draws", "sketches"]]
THINGS = ["apples", "boats", "cats", "drums", "eggs", "flowers", "games", "hats"]
FILL = ["really", "often", "today", "again", "quietly", "still"]
words = ["<pad>"] + NAMES + [w for g in VERBS for w in g] + THINGS + FILL
index = {w: i for i, w in enumerate(words)}
LENGTH, CLASSES = 12, len(VERBS)


def sentence():
    label = random.randrange(CLASSES)
    parts = [random.choice(NAMES)] + random.sample(FILL, random.randrange(1, 4)) + [random.choice(VERBS[label])]
    parts += [random.choice(THINGS)] + random.sample(FILL, random.randrange(0, 3))
    ids = [index[w] for w in parts][:LENGTH]
    return ids + [0] * (LENGTH - len(ids)), label


rows = [sentence() for _ in range(960)]

X = torch.tensor([r[0] for r in rows])
Y = torch.tensor([r[1] for r in rows])

test_rows = [sentence() for _ in range(400)]
TX, TY = torch.tensor([r[0] for r in test_rows]), torch.tensor([r[1] for r in test_rows])
loader = DataLoader(TensorDataset(X, Y), batch_size=args.batch_size, shuffle=True)


class Layer(nn.TransformerEncoderLayer):
    pass


class Classifier(nn.Module):
    def __init__(self, d=48, heads=4, depth=4):
        super().__init__()
        self.embed = nn.Embedding(len(words), d)
        self.position = nn.Parameter(torch.randn(LENGTH, d) * 0.02)
        self.encoder = nn.ModuleList([Layer(d, heads, 2 * d, dropout=0.1, batch_first=True, norm_first=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, CLASSES)


    def forward(self, ids):
        pad = ids == 0
        h = self.embed(ids) + self.position
        for layer in self.encoder:
            h = layer(h, src_key_padding_mask=pad)
        h = self.norm(h)
        keep = (~pad).unsqueeze(-1).float()
        pooled = (h * keep).sum(1) / keep.sum(1)
        return self.out(pooled)


model = Classifier()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
history = []
for epoch in range(args.epochs):
    model.train()
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        accuracy = (model(TX).argmax(-1) == TY).float().mean().item()
    print(f"epoch {epoch} loss {total / max(1, len(loader)):.4f} test accuracy {accuracy:.3f}")
