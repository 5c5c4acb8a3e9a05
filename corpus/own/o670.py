import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

SCALES = {"ionian": [0, 2, 4, 5, 7, 9, 11], "dorian": [0, 2, 3, 5, 7, 9, 10], "aeolian": [0, 2, 3, 5, 7, 8, 10]}
DUR = [1, 2, 3, 4]
PITCH0, BAR = len(DUR), len(DUR) + 24
VOCAB = BAR + 1
LENGTH = 64


def compose(rng):
    scale = SCALES[rng.choice(list(SCALES))]
    tonic, degree = int(rng.integers(0, 7)), int(rng.integers(0, 7))
    motif = rng.choice([-2, -1, 1, 2], size=4)
    out, beat, i = [], 0, 0
    while len(out) < LENGTH + 1:
        move = motif[i % 4] if rng.random() < 0.8 else rng.choice([-1, 0, 1])
        degree = int(np.clip(degree + move, 0, 11))
        if degree in (0, 11):
            motif = -motif
        pitch = (tonic + scale[degree % 7] + 12 * (degree // 7)) % 24
        dur = int(rng.choice(4, p=[.2, .5, .05, .25]))
        dur = min(dur, 7 - beat)
        out += [PITCH0 + pitch, dur]
        beat += DUR[dur]
        i += 1
        if beat >= 8:
            out.append(BAR)
            beat = 0
    return out[: LENGTH + 1]


def split_pieces(pieces, holdout=0.03, seed=0):
    perm = np.random.default_rng(seed).permutation(len(pieces))
    cut = int(len(pieces) * holdout)
    return pieces[perm[:cut]], pieces[perm[cut:]]


class TuneModel(nn.Module):
    def __init__(self, d=80, heads=4, layers=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(LENGTH, d)
        layer = nn.TransformerEncoderLayer(d, heads, 3 * d, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(d), enable_nested_tensor=False)
        self.out = nn.Linear(d, VOCAB)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x):
        h = self.emb(x) + self.pos.weight[: x.size(1)]
        return self.out(self.body(h, mask=self.mask, is_causal=True))

    def nll(self, piece):
        return F.cross_entropy(self(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())


class Session:
    def __init__(self, model, train, valid, lr, batch, seed):
        self.model, self.train_set, self.valid_set = model, train, valid
        self.batch = batch
        self.gen = torch.Generator().manual_seed(seed)
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.history = []

    def validate(self):
        self.model.eval()
        with torch.no_grad():
            value = self.model.nll(self.valid_set[:64]).item()
        self.model.train()
        return value

    def run(self, steps, report):
        for step in range(1, steps + 1):
            pick = torch.randint(0, len(self.train_set), (self.batch,), generator=self.gen)
            loss = self.model.nll(self.train_set[pick])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.history.append(loss.item())
            if step % report == 0:
                print(f"step {step:4d} train {np.mean(self.history[-report:]):.4f} valid {self.validate():.4f}")


def main():
    torch.manual_seed(13)
    rng = np.random.default_rng(13)
    pieces = torch.tensor([compose(rng) for _ in range(1500)])
    train, valid = split_pieces(pieces)
    session = Session(TuneModel(), train, valid, lr=2e-3, batch=16, seed=1)
    session.run(300, 30)
    print(f"final train {np.mean(session.history[-30:]):.4f} valid {session.validate():.4f}")


main()
