import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

random.seed(9)
torch.manual_seed(9)
VOCAB, BETA = 40, 0.5


class Policy(nn.Module):
    def __init__(self, d=48, h=4):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(64, d)
        self.enc = nn.ModuleList([nn.TransformerEncoderLayer(d, h, 2 * d, 0.0, batch_first=True, norm_first=True) for _ in range(2)])
        self.out = nn.Linear(d, VOCAB)

    def forward(self, ids):
        t = ids.size(1)
        x = self.emb(ids) + self.pos.weight[:t]
        causal = torch.full((t, t), float("-inf")).triu(1)
        for layer in self.enc:
            x = layer(x, src_mask=causal, is_causal=True)
        return self.out(x)


def sequence_logp(model, prompts, answers):
    scores = []
    for p, a in zip(prompts, answers):
        ids = torch.cat((p, a)).unsqueeze(0)
        logp = model(ids[:, :-1]).log_softmax(-1)
        picked = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
        scores.append(picked[0, len(p) - 1:].sum())
    return torch.stack(scores)


def pair():
    n = random.randint(4, 10)
    prompt = torch.randint(2, VOCAB, (n,))
    m = random.randint(4, 8)
    good, bad = torch.randint(2, VOCAB, (m,)), torch.randint(2, VOCAB, (m,))
    lead = int(prompt[0])
    good[::2] = 2 + lead % 2
    bad[1::2] = 2 + lead % 2
    return prompt, good, bad


policy, reference = Policy(), Policy()
reference.load_state_dict(policy.state_dict())
reference.requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0.0)
began = time.time()
for step in range(60):
    prompts, chosen, rejected = zip(*[pair() for _ in range(16)])
    with torch.no_grad():
        ref = sequence_logp(reference, prompts, chosen) - sequence_logp(reference, prompts, rejected)
    ours = sequence_logp(policy, prompts, chosen) - sequence_logp(policy, prompts, rejected)
    loss = -F.logsigmoid(BETA * (ours - ref)).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 5.0)
    optimizer.step()
    if step % 10 == 0 or step == 59:
        margin = (ours - ref).mean().item()
        print(f"step {step} loss {loss.item():.4f} margin {margin:.2f} elapsed {time.time() - began:.1f}s")
