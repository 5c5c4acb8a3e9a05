import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, SRC, PAD = 48, 10, 0
BOS = 1


class PointerGenerator(nn.Module):
    def __init__(self, d=64, heads=4):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.src_pos = nn.Embedding(SRC, d)
        self.tgt_pos = nn.Embedding(SRC, d)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.0, batch_first=True), 1)
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(d, heads, 2 * d, dropout=0.0, batch_first=True), 1)
        self.copy_q = nn.Linear(d, d)
        self.copy_k = nn.Linear(d, d)
        self.vocab_out = nn.Linear(d, VOCAB)
        self.switch = nn.Linear(d, 1)

    def forward(self, src, tgt_in):
        t = tgt_in.size(1)
        memory = self.encoder(self.emb(src) + self.src_pos.weight)
        causal = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        h = self.decoder(self.emb(tgt_in) + self.tgt_pos.weight[:t], memory, tgt_mask=causal)
        p_vocab = self.vocab_out(h).softmax(-1)
        score = self.copy_q(h) @ self.copy_k(memory).transpose(1, 2) / memory.size(-1) ** 0.5
        attn = score.softmax(-1)
        p_gen = torch.sigmoid(self.switch(h))
        index = src.unsqueeze(1).expand(-1, t, -1)
        return (p_gen * p_vocab).scatter_add(2, index, (1 - p_gen) * attn)


def sample(n, gen):
    src = torch.randint(2, VOCAB, (n, SRC), generator=gen)
    out = src.flip(1)
    out = torch.where(out % 5 == 0, torch.full_like(out, 3), out)
    start = torch.full((n, 1), BOS)
    return src, torch.cat([start, out[:, :-1]], 1), out


torch.manual_seed(11)
gen = torch.Generator().manual_seed(4)
model = PointerGenerator()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for it in range(260):
    src, tgt_in, tgt = sample(32, gen)
    dist = model(src, tgt_in)
    loss = F.cross_entropy(dist.reshape(-1, VOCAB), tgt.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimizer.step()
    if it % 20 == 0 or it == 259:
        acc = (dist.argmax(-1) == tgt).float().mean().item()
        print(f"iter {it} loss {loss.item():.4f} token acc {acc:.3f}")
