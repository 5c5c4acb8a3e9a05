import random
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForTokenClassification, set_seed

set_seed(12)
V, TAGS, PAD = 120, 4, 0
FICTION = list(range(1, 6))
CAP = list(range(21, 61))
LOWER = list(range(61, V))


def sentence():
    w, t = [], []
    for _ in range(random.randint(5, 22)):
        r = random.random()
        if r < 0.3:
            c = random.choice(CAP)
            w.append(c)
            t.append(1 if c < 41 else 2)
        else:
            w.append(random.choice(LOWER))
            t.append(0)
    if random.random() < 0.4:
        w.insert(random.randint(0, len(w)), random.choice(FICTION))
        t = [3 if k else 0 for k in t]
        t.insert(w.index(next(k for k in w if k in FICTION)), 0)
    return w, t


def collate(rows):
    L = max(len(w) for w, _ in rows)
    ids = torch.tensor([w + [PAD] * (L - len(w)) for w, _ in rows])
    tags = torch.tensor([t + [-100] * (L - len(t)) for _, t in rows])
    return ids, tags


train = [sentence() for _ in range(4000)]
test = collate([sentence() for _ in range(300)])
model = BertForTokenClassification(BertConfig(
    vocab_size=V, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
    max_position_embeddings=64, num_labels=TAGS, initializer_range=0.06, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20) * (1 - s / 190))
MICRO, ACC = 6, 4
for update in range(180):
    chunk = random.sample(train, MICRO * ACC)
    chunk.sort(key=lambda r: len(r[0]))
    count = sum(len(t) for _, t in chunk)
    total = 0.0
    for k in range(ACC):
        ids, tags = collate(chunk[k * MICRO:(k + 1) * MICRO])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=ids, attention_mask=(ids != PAD).long()).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), tags.flatten(), ignore_index=-100, reduction="sum")
        (loss / count).backward()
        total += loss.item()
    opt.step()
    sched.step()
    opt.zero_grad()
    if update % 30 == 0 or update == 179:
        model.eval()
        with torch.no_grad():
            p = model(input_ids=test[0], attention_mask=(test[0] != PAD).long()).logits.argmax(-1)
        model.train()
        ent = test[1] > 0
        print(f"update {update} loss/tag {total / count:.4f} entity recall {(p[ent] == test[1][ent]).float().mean():.3f}")
