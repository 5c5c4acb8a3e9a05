import math

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

set_seed(17)
PAD, BOS, EOS, SYMBOLS, MAXLEN = 0, 1, 2, 20, 9


class Transliteration(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        table = torch.randperm(SYMBOLS, generator=g)
        self.pairs = []
        for _ in range(n):
            k = int(torch.randint(5, MAXLEN + 1, (1,), generator=g))
            s = torch.randint(SYMBOLS, (k,), generator=g)
            src = torch.full((MAXLEN,), PAD)
            tgt = torch.full((MAXLEN + 2,), PAD)
            src[:k] = s + 3
            tgt[0], tgt[1:k + 1], tgt[k + 1] = BOS, table[s] + 3, EOS
            self.pairs.append((src, tgt))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


class Seq2Seq(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(SYMBOLS + 3, d, padding_idx=PAD)
        self.src_pos = nn.Parameter(torch.randn(MAXLEN, d) * 0.3)
        self.tgt_pos = nn.Parameter(torch.randn(MAXLEN + 1, d) * 0.3)
        self.core = nn.Transformer(d, 4, 1, 1, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.proj = nn.Linear(d, SYMBOLS + 3)

    def forward(self, src, tgt):
        causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
        blank = src == PAD
        h = self.core(self.emb(src) + self.src_pos, self.emb(tgt) + self.tgt_pos, tgt_mask=causal,
                      src_key_padding_mask=blank, memory_key_padding_mask=blank,
                      tgt_key_padding_mask=tgt == PAD)
        return self.proj(h)


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
loader = DataLoader(Transliteration(2560, 3), batch_size=16, shuffle=True, drop_last=True)
epochs = 4
updates = epochs * math.ceil(len(loader) / accelerator.gradient_accumulation_steps)
model = Seq2Seq()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
warmup = int(0.1 * updates)


def linear_with_warmup(s):
    if s < warmup:
        return (s + 1) / warmup
    return max(0.0, (updates - s) / (updates - warmup))


scheduler = LambdaLR(optimizer, linear_with_warmup)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)

done, bucket = 0, []
for epoch in range(epochs):
    model.train()
    for src, tgt in loader:
        with accelerator.accumulate(model):
            logits = model(src, tgt[:, :-1])
            loss = criterion(logits.flatten(0, 1), tgt[:, 1:].flatten())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        bucket.append(loss.item())
        if accelerator.sync_gradients:
            if done % 16 == 0 or done == updates - 1:
                accelerator.print(f"update {done}/{updates} loss {sum(bucket) / len(bucket):.4f}")
            done += 1
            bucket = []
