import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(31)


class AdditiveAttention(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.W = nn.Linear(hidden, hidden)
        self.U = nn.Linear(hidden, hidden)
        self.v = nn.Linear(hidden, 1)

    def forward(self, query, keys):
        energy = self.v(torch.tanh(self.W(query).unsqueeze(1) + self.U(keys)))
        weights = F.softmax(energy, dim=-1)
        context = (weights * keys).sum(dim=1)
        return context, weights.squeeze(-1)


class Encoder(nn.Module):
    def __init__(self, vocab, hidden, max_len):
        super().__init__()
        self.tok = nn.Embedding(vocab, hidden)
        self.pos = nn.Embedding(max_len, hidden)
        self.layer = nn.TransformerEncoderLayer(hidden, 4, 2 * hidden, 0.0, batch_first=True)

    def forward(self, src):
        return self.layer(self.tok(src) + self.pos.weight[: src.size(1)])


class AttnDecoder(nn.Module):
    def __init__(self, vocab, hidden, max_len):
        super().__init__()
        self.tok = nn.Embedding(vocab, hidden)
        self.pos = nn.Embedding(max_len, hidden)
        self.attention = AdditiveAttention(hidden)
        self.cell = nn.GRUCell(2 * hidden, hidden)
        self.out = nn.Linear(2 * hidden, vocab)

    def forward(self, memory, start, target):
        h = memory.mean(1)
        prev = start
        logits = []
        for t in range(target.size(1)):
            context, _ = self.attention(h + self.pos.weight[t], memory)
            h = self.cell(torch.cat([self.tok(prev), context], -1), h)
            logits.append(self.out(torch.cat([h, context], -1)))
            prev = target[:, t]
        return torch.stack(logits, 1)


VOCAB, LEN, HID = 22, 9, 64
encoder = Encoder(VOCAB, HID, LEN)
decoder = AttnDecoder(VOCAB, HID, LEN)
enc_opt = torch.optim.Adam(encoder.parameters(), lr=3e-3)
dec_opt = torch.optim.Adam(decoder.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()


def train_step(src, tgt):
    enc_opt.zero_grad()
    dec_opt.zero_grad()
    sos = torch.ones(src.size(0), dtype=torch.long)
    logits = decoder(encoder(src), sos, tgt)
    loss = criterion(logits.reshape(-1, VOCAB), tgt.reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(list(encoder.parameters()) + list(decoder.parameters()), 1.0)
    enc_opt.step()
    dec_opt.step()
    return loss.item(), (logits.argmax(-1) == tgt).float().mean().item()


total = 0.0
for it in range(1, 231):
    src = torch.randint(2, VOCAB, (48, LEN))
    loss, acc = train_step(src, src)
    total += loss
    if it == 1 or it % 23 == 0:
        print(f"{it:4d} loss {loss:.4f} acc {acc:.3f}")
