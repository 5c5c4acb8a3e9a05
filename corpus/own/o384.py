import random

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from pydoc_data.topics import topics
from torch import nn
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup, set_seed

set_seed(8)
N_STYLE, T = 4, 40
names = sorted(topics)
groups = [[" ".join(topics[n].split()) for n in names[i::N_STYLE]] for i in range(N_STYLE)]
chars = sorted(set("".join("".join(g) for g in groups)))
stoi = {c: i for i, c in enumerate(chars)}


def samples(n):
    out = []
    for _ in range(n):
        s = random.randrange(N_STYLE)
        doc = random.choice([d for d in groups[s] if len(d) > T + 1])
        a = random.randrange(len(doc) - T)
        out.append((s, torch.tensor([stoi[c] for c in doc[a:a + T]])))
    return out


class StyledLM(nn.Module):
    def __init__(self, vocab, n_soft=4):
        super().__init__()
        self.n_soft = n_soft
        cfg = GPT2Config(vocab_size=vocab, n_positions=64, n_embd=64, n_layer=2, n_head=4,
                         resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        self.lm = GPT2LMHeadModel(cfg)
        self.soft = nn.Embedding(N_STYLE, n_soft * 64)
        self.start = nn.Parameter(torch.randn(1, 1, 64) * 0.02)

    def forward(self, style, ids):
        emb = self.lm.transformer.wte(ids)
        soft = self.soft(style).view(len(ids), self.n_soft, -1)
        x = torch.cat([soft, self.start.expand(len(ids), -1, -1), emb], dim=1)
        logits = self.lm(inputs_embeds=x).logits
        first = self.n_soft - 1
        return logits[:, first:first + ids.shape[1]]


acc = Accelerator(cpu=True)
loader = DataLoader(samples(2400), batch_size=16, shuffle=True)
model = StyledLM(len(chars))
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
sched = get_linear_schedule_with_warmup(opt, 15, 200)
model, opt, loader, sched = acc.prepare(model, opt, loader, sched)
step = 0
while step < 200:
    for style, ids in loader:
        logits = model(style, ids)
        loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), ids.reshape(-1))
        acc.backward(loss)
        acc.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        if step % 20 == 0 or step == 199:
            acc.print(f"step {step} loss {loss.item():.3f}")
        step += 1
        if step == 200:
            break
