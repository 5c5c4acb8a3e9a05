import random
import torch
import torch.nn as nn
import torch.nn.functional as F

ALPHABET = 20
PROMPT, ANSWER = 6, 6
BETA = 0.3


class Policy(nn.Module):
    def __init__(self, d=48, layers=2):
        super().__init__()
        self.tok = nn.Embedding(ALPHABET, d)
        self.pos = nn.Embedding(PROMPT + ANSWER, d)
        self.blocks = nn.ModuleList([
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)])
        self.ln = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, ALPHABET)

    def forward(self, ids):
        t = ids.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        h = self.tok(ids) + self.pos.weight[:t]
        for blk in self.blocks:
            h = blk(h, src_mask=mask)
        return self.lm_head(self.ln(h))


def answer_logps(model, seq):
    logp = model(seq[:, :-1]).log_softmax(-1)
    picked = logp.gather(2, seq[:, 1:].unsqueeze(2)).squeeze(2)
    return picked[:, PROMPT - 1:].sum(1)


def make_batch(n):
    prompt = torch.randint(ALPHABET, (n, PROMPT))
    good = prompt.sort(1).values
    bad = prompt.sort(1, descending=True).values
    return torch.cat([prompt, good], 1), torch.cat([prompt, bad], 1)


random.seed(1)
torch.manual_seed(1)
reference = Policy()
for p in reference.parameters():
    p.requires_grad_(False)
policy = Policy()
policy.load_state_dict(reference.state_dict())
optimizer = torch.optim.RMSprop(policy.parameters(), lr=5e-4)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 15)

for step in range(1, 161):
    chosen, rejected = make_batch(24)
    with torch.no_grad():
        ref_margin = answer_logps(reference, chosen) - answer_logps(reference, rejected)
        margin = answer_logps(policy, chosen) - answer_logps(policy, rejected) - ref_margin
        loss = -F.logsigmoid(BETA * margin).mean()
        weight = BETA * torch.sigmoid(-BETA * margin) / len(margin)
    optimizer.zero_grad()
    for seqs, coeff in ((chosen, -weight), (rejected, -weight)):
        (coeff * answer_logps(policy, seqs)).sum().backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 5.0)
    optimizer.step()
    warmup.step()
    if step == 1 or step % 10 == 0:
        wins = (margin > 0).float().mean().item()
        print(f"step {step:3d} loss {loss.item():.4f} margin {margin.mean().item():+.3f} wins {wins:.2f}")
