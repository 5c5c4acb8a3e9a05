import torch
import torch.nn as nn
import torch.nn.functional as F

SRC_LEN, TGT_LEN = 10, 6
COMMON, NAMES = 30, 90
VOCAB = 2 + COMMON + NAMES
BOS, PAD = 0, 1
torch.manual_seed(31)
translation = 2 + torch.stack([torch.randperm(COMMON), torch.randperm(COMMON)])


def sample_pairs(n):
    src = 2 + torch.randint(0, COMMON, (n, SRC_LEN))
    named = torch.rand(n, SRC_LEN) < 0.4
    src = torch.where(named, 2 + COMMON + torch.randint(0, NAMES, (n, SRC_LEN)), src)
    head = src[:, :TGT_LEN]
    choice = (torch.rand(n, TGT_LEN) < 0.35).long()
    tgt = torch.where(named[:, :TGT_LEN], head, translation[choice, (head - 2).clamp(max=COMMON - 1)])
    return src, tgt


class PointerGenerator(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(VOCAB, hidden)
        self.src_pos = nn.Embedding(SRC_LEN, hidden)
        self.tgt_pos = nn.Embedding(TGT_LEN, hidden)
        self.encoder = nn.GRU(hidden, hidden // 2, bidirectional=True, batch_first=True)
        self.decoder = nn.GRU(hidden, hidden, batch_first=True)
        self.query = nn.Linear(hidden, hidden)
        self.vocab_out = nn.Linear(2 * hidden, VOCAB)
        self.gate = nn.Linear(2 * hidden, 1)

    def forward(self, src, tgt_in):
        e = self.embed(src) + self.src_pos.weight
        memory = self.encoder(e)[0] + e
        state = self.decoder(self.embed(tgt_in) + self.tgt_pos.weight[: tgt_in.size(1)])[0]
        score = self.query(state) @ memory.transpose(1, 2) / self.hidden ** 0.5
        attn = score.softmax(-1)
        both = torch.cat([state, attn @ memory], -1)
        p_vocab = self.vocab_out(both).softmax(-1)
        p_gen = torch.sigmoid(self.gate(both))
        copied = torch.zeros_like(p_vocab).scatter_add(
            2, src[:, None].expand(-1, tgt_in.size(1), -1), (1 - p_gen) * attn)
        return p_gen * p_vocab + copied


def shift_right(tgt):
    return F.pad(tgt, (1, 0), value=BOS)[:, :-1]


def criterion(dist, tgt):
    return F.cross_entropy(dist.flatten(0, 1), tgt.flatten(), ignore_index=PAD)


def evaluate(model):
    model.eval()
    with torch.no_grad():
        src, tgt = sample_pairs(600)
        p = model(src, shift_right(tgt)).gather(2, tgt[..., None]).clamp_min(1e-9)
    return p.log().mean().neg().exp().item()


model = PointerGenerator()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(8):
    model.train()
    total = 0.0
    for _ in range(50):
        src, tgt = sample_pairs(48)
        loss = criterion(model(src, shift_right(tgt)), tgt)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        total += loss.item()
    print(f"Epoch {epoch + 1} | train loss {total / 50:.4f}")
print(f"Test perplexity of the reference {evaluate(model):.3f}")
