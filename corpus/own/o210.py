import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS = 0, 1


def clones(module, n):
    return nn.ModuleList([copy.copy(module) for _ in range(n)])


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = clones(nn.Linear(d_model, d_model), 4)

    def forward(self, query, key, value, mask=None):
        n = query.size(0)
        query, key, value = [lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
                             for lin, x in zip(self.linears, (query, key, value))]
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        x = scores.softmax(dim=-1) @ value
        return self.linears[-1](x.transpose(1, 2).reshape(n, -1, self.h * self.d_k))


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.w_2(self.w_1(x).relu())


class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn, feed_forward):
        super().__init__()
        self.self_attn, self.feed_forward = self_attn, feed_forward
        self.norms = clones(nn.LayerNorm(size), 2)

    def forward(self, x):
        h = self.norms[0](x)
        x = x + self.self_attn(h, h, h)
        return x + self.feed_forward(self.norms[1](x))


class DecoderLayer(nn.Module):
    def __init__(self, size, self_attn, src_attn, feed_forward):
        super().__init__()
        self.self_attn, self.src_attn, self.feed_forward = self_attn, src_attn, feed_forward
        self.norms = clones(nn.LayerNorm(size), 3)

    def forward(self, x, memory, mask):
        h = self.norms[0](x)
        x = x + self.self_attn(h, h, h, mask)
        x = x + self.src_attn(self.norms[1](x), memory, memory)
        return x + self.feed_forward(self.norms[2](x))


class Embeddings(nn.Module):
    def __init__(self, d_model, vocab, longest=64):
        super().__init__()
        self.lut = nn.Embedding(vocab, d_model)
        pos = torch.arange(longest).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe = torch.zeros(longest, d_model)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.lut(x) * math.sqrt(self.lut.embedding_dim) + self.pe[:x.size(1)]


class EncoderDecoder(nn.Module):
    def __init__(self, enc, dec, src_embed, tgt_embed, size, vocab, n):
        super().__init__()
        self.encoder, self.decoder = clones(enc, n), clones(dec, n)
        self.src_embed, self.tgt_embed = src_embed, tgt_embed
        self.enc_norm, self.dec_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.generator = nn.Linear(size, vocab)

    def forward(self, src, tgt):
        m = self.src_embed(src)
        for layer in self.encoder:
            m = layer(m)
        m = self.enc_norm(m)
        x = self.tgt_embed(tgt)
        mask = torch.ones(tgt.size(1), tgt.size(1)).tril()
        for layer in self.decoder:
            x = layer(x, m, mask)
        return self.generator(self.dec_norm(x))


def make_model(src_vocab, tgt_vocab, n=2, d_model=64, d_ff=128, h=4):
    c = copy.deepcopy
    attn = MultiHeadedAttention(h, d_model)
    ff = PositionwiseFeedForward(d_model, d_ff)
    model = EncoderDecoder(
        EncoderLayer(d_model, c(attn), c(ff)),
        DecoderLayer(d_model, c(attn), c(attn), c(ff)),
        Embeddings(d_model, src_vocab), Embeddings(d_model, tgt_vocab), d_model, tgt_vocab, n)
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return model


def data_gen(batch, length, vocab):
    src = torch.randint(2, vocab, (batch, length))
    tgt = torch.roll(src, 5, dims=1)
    return src, torch.cat((torch.full((batch, 1), BOS), tgt), dim=1)


torch.manual_seed(0)
V = 28
model = make_model(V, V)
print(sum(p.numel() for p in model.parameters()), "parameters")
optimizer = torch.optim.Adam(model.parameters(), lr=0.5e-3, betas=(0.9, 0.98), eps=1e-9)
STEPS = 175
for step in range(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = 1.5e-3 * min(1.0, (step + 1) / 20)
    src, tgt = data_gen(32, 12, V)
    out = model(src, tgt[:, :-1])
    loss = F.cross_entropy(out.reshape(-1, V), tgt[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:4d} loss {loss.item():.4f}")
