import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(51)
rng = np.random.default_rng(51)

A, C, G, T, MASK = range(5)
LENGTH = 48
MOTIFS = [[T, A, T, A, A, A, G], [G, G, C, C, A, A, T], [C, A, C, G, T, G, C]]


def genome(n):
    seq = rng.integers(0, 4, size=(n, LENGTH))
    tag = np.zeros((n, LENGTH), int)
    for row in range(n):
        for start in range(int(rng.integers(0, 5)), LENGTH - 7, 10):
            k = int(rng.integers(0, 4))
            if k < 3:
                seq[row, start:start + 7] = MOTIFS[k]
                tag[row, start:start + 7] = k + 1
    return torch.from_numpy(seq), torch.from_numpy(tag)


class Encoder(nn.Module):
    def __init__(self, d=48, layers=2):
        super().__init__()
        self.emb = nn.Embedding(5, d)
        self.local = nn.Conv1d(d, d, 7, padding=3)
        self.pos = nn.Parameter(torch.randn(LENGTH, d) * 0.1)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(d), enable_nested_tensor=False)

    def forward(self, x):
        h = self.emb(x)
        h = h + F.gelu(self.local(h.transpose(1, 2))).transpose(1, 2) + self.pos
        return self.body(h)


def mask_bases(x, gen, rate=0.25):
    hide = torch.rand(x.shape, generator=gen) < rate
    hide[:, 0] = True
    return x.masked_fill(hide, MASK), x.masked_fill(~hide, -100)


def pretrain(encoder, seqs, steps, gen):
    head = nn.Linear(48, 4)
    opt = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=2e-3)
    for step in range(1, steps + 1):
        x, y = mask_bases(seqs[torch.randint(0, len(seqs), (24,), generator=gen)], gen)
        loss = F.cross_entropy(head(encoder(x)).transpose(1, 2), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            print(f"pretrain {step} masked loss {loss.item():.4f}")


def finetune(encoder, seqs, tags, steps, gen):
    encoder.eval()
    for p in encoder.parameters():
        p.requires_grad_(False)
    head = nn.Sequential(nn.Dropout(0.3), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 4))
    opt = torch.optim.SGD(head.parameters(), lr=0.2, momentum=0.9, nesterov=True)
    weight = torch.tensor([0.5, 1.0, 1.0, 1.0])
    for step in range(1, steps + 1):
        i = torch.randint(0, len(seqs), (24,), generator=gen)
        with torch.no_grad():
            feats = encoder(seqs[i])
        loss = F.cross_entropy(head(feats).flatten(0, 1), tags[i].flatten(), weight)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            print(f"tagger {step} loss {loss.item():.4f}")
    return head.eval()


gen = torch.Generator().manual_seed(2)
seqs, tags = genome(1500)
test_x, test_y = genome(150)
encoder = Encoder()
pretrain(encoder, seqs, 225, gen)
head = finetune(encoder, seqs[:400], tags[:400], 125, gen)
with torch.no_grad():
    pred = head(encoder(test_x)).argmax(-1)
print(f"tag accuracy {(pred == test_y).float().mean():.3f}  "
      f"motif recall {(pred == test_y)[test_y > 0].float().mean():.3f}")
