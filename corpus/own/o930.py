import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaModel

torch.manual_seed(70)
VOCAB, LEN, STEPS = 80, 20, 300
word_value = torch.randn(VOCAB) * 0.8
word_value[:4] = 0.0


def texts(n):
    length = torch.randint(8, LEN + 1, (n,))
    ids = torch.randint(4, VOCAB, (n, LEN))
    mask = torch.arange(LEN)[None] < length[:, None]
    ids = ids.masked_fill(~mask, 0)
    score = (word_value[ids] * mask).sum(1)
    return ids, mask.long(), score


def comparisons(n):
    a, b = texts(n), texts(n)
    prefer_a = torch.rand(n) < torch.sigmoid(a[2] - b[2])
    pick = lambda i: (torch.where(prefer_a[:, None], a[i], b[i]), torch.where(prefer_a[:, None], b[i], a[i]))
    (wi, li), (wm, lm) = pick(0), pick(1)
    return wi, wm, li, lm


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = LlamaModel(LlamaConfig(vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                               num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LEN,
                                               initializer_range=0.05, pad_token_id=0))
        self.value = nn.Linear(64, 1, bias=False)
        self.length_probe = nn.Linear(64, 1)
        nn.init.zeros_(self.value.weight)

    def forward(self, ids, mask):
        h = self.backbone(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        last = h[torch.arange(len(ids)), mask.sum(1) - 1]
        return self.value(last).squeeze(-1), self.length_probe(last.detach()).squeeze(-1)


def losses(model, batch):
    wi, wm, li, lm = batch
    r, length = model(torch.cat([wi, li]), torch.cat([wm, lm]))
    rw, rl = r.chunk(2)
    rank = -F.logsigmoid(rw - rl).mean()
    center = 0.001 * (rw + rl).square().mean()
    probe = F.mse_loss(length, torch.cat([wm, lm]).sum(1).float() / LEN)
    return rank, center, probe, (rw > rl).float().mean()


model = RewardModel()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=STEPS, pct_start=0.1)
held = comparisons(600)
for step in range(STEPS):
    model.train()
    rank, center, probe, acc = losses(model, comparisons(24))
    opt.zero_grad()
    (rank + center + probe).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 30 == 0 or step == STEPS - 1:
        print(f"step {step} rank loss {rank.item():.4f} acc {acc.item():.3f} probe mse {probe.item():.4f}")
model.eval()
with torch.no_grad():
    rank, _, probe, acc = losses(model, held)
print(f"held-out rank loss {rank.item():.4f} accuracy {acc.item():.3f} length probe mse {probe.item():.4f}")
