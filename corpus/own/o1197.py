import pathlib
import random
import tempfile
import time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 24
COLOURS = {
    "red": (1, 0, 0),
    "green": (0, 1, 0),
    "blue": (0, 0, 1),
    "yellow": (1, 1, 0),
    "white": (1, 1, 1),
}
SHAPES = ["square", "cross", "ring"]
ROWS, COLS = (["top", "bottom"], ["left", "right"])
WORDS = ["<pad>", "<bos>", "<eos>", "a", "and", "at", "the"] + list(COLOURS) + SHAPES + ROWS + COLS
STOI = {w: i for i, w in enumerate(WORDS)}
PAD, BOS, EOS = (0, 1, 2)


def stamp(img, shape, colour, row, col, rng):
    r = (0 if row == "top" else 12) + rng.randint(0, 4)
    c = (0 if col == "left" else 12) + rng.randint(0, 4)
    m = np.zeros((7, 7), dtype=bool)
    if shape == "square":
        m[:] = True
    elif shape == "cross":
        m[3, :] = m[:, 3] = True
    else:
        m[:] = True
        m[2:5, 2:5] = False
    for ch in range(3):
        img[ch, r : r + 7, c : c + 7][m] = COLOURS[colour][ch]


def render(root, n, seed):
    rng = random.Random(seed)
    noise = np.random.default_rng(seed)
    root.mkdir(parents=True)
    lines = []
    for i in range(n):
        img = noise.normal(0, 0.08, (3, SIZE, SIZE)).astype(np.float32)
        cells = rng.sample([(r, c) for r in ROWS for c in COLS], rng.choice([1, 2]))
        cells.sort(key=lambda rc: (ROWS.index(rc[0]), COLS.index(rc[1])))
        parts = []
        for row, col in cells:
            shape, colour = (rng.choice(SHAPES), rng.choice(list(COLOURS)))
            stamp(img, shape, colour, row, col, rng)
            parts.append(f"a {colour} {shape} at the {row} {col}")
        np.save(root / f"{i}.npy", img)
        lines.append(" and ".join(parts))
    (root / "captions.txt").write_text("\n".join(lines))


class CaptionFolder(Dataset):
    def __init__(self, root):
        self.files = sorted(root.glob("*.npy"), key=lambda p: int(p.stem))
        self.captions = (root / "captions.txt").read_text().splitlines()
        assert len(self.files) == len(self.captions)
        self.images = torch.stack([torch.from_numpy(np.load(f)) for f in self.files])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        ids = [BOS] + [STOI[w] for w in self.captions[i].split()] + [EOS]
        return (self.images[i], torch.tensor(ids))


def collate(batch):
    imgs = torch.stack([b[0] for b in batch])
    caps = nn.utils.rnn.pad_sequence([b[1] for b in batch], batch_first=True, padding_value=PAD)
    return (imgs, caps)


class Captioner(nn.Module):
    def __init__(self, d=64, layers=2, max_len=20):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(32, d, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(d, d, 3, padding=1),
        )
        self.grid = nn.Parameter(torch.randn(36, d) * 0.1)
        self.mem_norm = nn.LayerNorm(d)
        self.tok = nn.Embedding(len(WORDS), d, padding_idx=PAD)
        self.pos = nn.Embedding(max_len, d)
        layer = nn.TransformerDecoderLayer(
            d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerDecoder(layer, layers, norm=nn.LayerNorm(d))
        self.out = nn.Linear(d, len(WORDS))

    def forward(self, imgs, caps):
        mem = self.cnn(imgs).flatten(2).transpose(1, 2)
        mem = self.mem_norm(mem + self.grid)
        T = caps.size(1)
        x = self.tok(caps) + self.pos(torch.arange(T))
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        return self.out(self.decoder(x, mem, tgt_mask=mask, tgt_is_causal=True))


@torch.no_grad()
def exact_match(model, data, n=300):
    model.eval()
    imgs, refs = collate([data[i] for i in range(n)])
    caps = torch.full((n, 1), BOS)
    for _ in range(refs.size(1) - 1):
        nxt = model(imgs, caps)[:, -1].argmax(-1)
        nxt[(caps == EOS).any(1)] = PAD
        caps = torch.cat([caps, nxt[:, None]], 1)
    model.train()
    return (caps == refs).all(1).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    t0 = time.time()
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        render(tmp / "train", 2800, seed=1)
        render(tmp / "val", 400, seed=2)
        train, val = (CaptionFolder(tmp / "train"), CaptionFolder(tmp / "val"))
    loader = DataLoader(train, batch_size=64, shuffle=True, collate_fn=collate, drop_last=True)
    model = Captioner()
    opt = torch.optim.Adam(model.parameters(), lr=0.0015)
    ce = nn.CrossEntropyLoss(ignore_index=PAD)
    step = 0
    for epoch in range(6):
        for imgs, caps in loader:
            logits = model(imgs, caps[:, :-1])
            loss = ce(logits.flatten(0, 1), caps[:, 1:].flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            if step % 40 == 0:
                print(f"{time.time() - t0:5.1f}s epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
    print(f"last loss {loss.item():.4f}  caption exact match on val {exact_match(model, val):.3f}")
