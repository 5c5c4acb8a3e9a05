import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(17)


def clones(module, n):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        for lin in self.linears:
            nn.init.xavier_uniform_(lin.weight)

    def forward(self, query, key, value, mask=None):
        n = query.size(0)
        query, key, value = [lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2) for lin, x in zip(self.linears, (query, key, value))]
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        x = scores.softmax(-1) @ value
        return self.linears[-1](x.transpose(1, 2).reshape(n, -1, self.h * self.d_k))


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.w_2(F.relu(self.w_1(x)))


class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn, feed_forward):
        super().__init__()
        self.self_attn, self.feed_forward = self_attn, feed_forward
        self.norms = nn.ModuleList([nn.LayerNorm(size) for _ in range(2)])

    def forward(self, x):
        z = self.norms[0](x)
        x = x + self.self_attn(z, z, z)
        return x + self.feed_forward(self.norms[1](x))


class DecoderLayer(nn.Module):
    def __init__(self, size, self_attn, src_attn, feed_forward):
        super().__init__()
        self.self_attn, self.src_attn, self.feed_forward = self_attn, src_attn, feed_forward
        self.norms = nn.ModuleList([nn.LayerNorm(size) for _ in range(3)])

    def forward(self, x, memory, mask):
        z = self.norms[0](x)
        x = x + self.self_attn(z, z, z, mask)
        x = x + self.src_attn(self.norms[1](x), memory, memory)
        return x + self.feed_forward(self.norms[2](x))


class Seq2Seq(nn.Module):
    def __init__(self, vocab, max_len, n=3, d_model=48, d_ff=96, h=4):
        super().__init__()
        c = copy.copy
        attn = MultiHeadedAttention(h, d_model)
        ff = FeedForward(d_model, d_ff)
        self.src_embed, self.tgt_embed = nn.Embedding(vocab, d_model), nn.Embedding(vocab, d_model)
        self.pos = nn.Parameter(torch.randn(max_len, d_model) * 0.5)
        self.encoder = nn.ModuleList([EncoderLayer(d_model, c(attn), c(ff)) for _ in range(n)])
        self.decoder = nn.ModuleList([DecoderLayer(d_model, c(attn), c(attn), c(ff)) for _ in range(n)])
        self.mem_norm, self.out_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.generator = nn.Linear(d_model, vocab)

    def forward(self, src, tgt):
        m = self.src_embed(src) + self.pos[: src.size(1)]
        for layer in self.encoder:
            m = layer(m)
        m = self.mem_norm(m)
        y = self.tgt_embed(tgt) + self.pos[: tgt.size(1)]
        mask = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).tril()
        for layer in self.decoder:
            y = layer(y, m, mask)
        return self.generator(self.out_norm(y))


VOCAB, LEN, START = 40, 9, 0
swap = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(VOCAB - 1)])


def data_gen(batch):
    src = torch.randint(1, VOCAB, (batch, LEN))
    out = swap[src.flip(1)]
    tgt = torch.cat([torch.full((batch, 1), START), out], 1)
    return src, tgt[:, :-1], tgt[:, 1:]


model = Seq2Seq(VOCAB, LEN)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
sched = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 30))
for i in range(140):
    src, tgt, gold = data_gen(48)
    out = model(src, tgt)
    loss = F.cross_entropy(out.reshape(-1, VOCAB), gold.reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    sched.step()
    if i % 20 == 0 or i == 139:
        print("Step: %6d | Loss: %6.3f | LR: %6.1e" % (i, loss.item(), optimizer.param_groups[0]["lr"]))
