import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(66)
ALPHABET = 12
PADC, SOS, EOS = 12, 13, 14
GLYPHS = (torch.rand(ALPHABET, 8, 4, generator=torch.Generator().manual_seed(3)) < 0.5).float()


def render(n, gen):
    images, words = [], []
    for _ in range(n):
        k = int(torch.randint(2, 7, (1,), generator=gen))
        w = torch.randint(0, ALPHABET, (k,), generator=gen)
        cols = [torch.zeros(8, int(torch.randint(0, 2, (1,), generator=gen)))]
        for c in w.tolist():
            cols += [GLYPHS[c], torch.zeros(8, 1 + int(torch.randint(0, 2, (1,), generator=gen)))]
        line = torch.cat(cols, 1)
        line = F.pad(line, (0, 38 - line.size(1))) if line.size(1) < 38 else line[:, :38]
        images.append(line + 0.15 * torch.randn(8, 38, generator=gen))
        words.append(torch.cat([torch.tensor([SOS]), w, torch.tensor([EOS])]))
    return torch.stack(images), words


class LineReader(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.conv = nn.Conv1d(8, d, 5, padding=2)
        self.conv2 = nn.Conv1d(d, d, 3, stride=2, padding=1)
        self.img_pos = nn.Parameter(0.1 * torch.randn(19, d))
        self.chr = nn.Embedding(15, d)
        self.chr_pos = nn.Parameter(0.1 * torch.randn(9, d))
        self.core = nn.Transformer(d, 4, 1, 2, 96, 0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(d, 15)

    def encode(self, img):
        h = self.conv2(F.gelu(self.conv(img))).transpose(1, 2) + self.img_pos
        return self.core.encoder(h)

    def decode(self, mem, tok):
        t = tok.size(1)
        causal = torch.ones(t, t, dtype=torch.bool).triu(1)
        h = self.core.decoder(self.chr(tok) + self.chr_pos[:t], mem, tgt_mask=causal,
                              tgt_key_padding_mask=tok == PADC)
        return self.out(h)


@torch.no_grad()
def read(model, img):
    mem = model.encode(img)
    tok = torch.full((len(img), 1), SOS)
    for _ in range(7):
        tok = torch.cat([tok, model.decode(mem, tok)[:, -1].argmax(-1, keepdim=True)], 1)
    return tok[:, 1:]


gen = torch.Generator().manual_seed(66)
images, words = render(4000, gen)
test_images, test_words = render(200, gen)
model = LineReader()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
UPDATES, MICRO, SIZE = 260, 2, 16
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 40) * (1 - 0.9 * s / UPDATES))

order = torch.randperm(len(images), generator=gen).tolist()
cursor = 0
for update in range(1, UPDATES + 1):
    chunks = []
    for _ in range(MICRO):
        if cursor + SIZE > len(order):
            order, cursor = torch.randperm(len(images), generator=gen).tolist(), 0
        idx = order[cursor:cursor + SIZE]
        cursor += SIZE
        chunks.append((images[idx], pad_sequence([words[i] for i in idx], True, PADC)))
    tokens = sum((y[:, 1:] != PADC).sum() for _, y in chunks)
    opt.zero_grad()
    total = 0.0
    for x, y in chunks:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model.decode(model.encode(x), y[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), y[:, 1:].flatten(),
                               ignore_index=PADC, reduction="sum") / tokens
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if update % 20 == 0:
        print(f"update {update} loss per character {total:.4f}")

model.eval()
pred = read(model, test_images)
exact = sum(pred[i, :len(w) - 1].tolist() == w[1:].tolist() for i, w in enumerate(test_words))
print(f"exact match on held-out lines {exact / len(test_words):.4f}")
