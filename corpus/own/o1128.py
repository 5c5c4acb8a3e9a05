import random, time
import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

random.seed(11); torch.manual_seed(11)

N_ITEMS, PAD, MAXLEN = 160, 0, 24
links = {}
for i in range(1, N_ITEMS + 1):
    links[i] = random.sample(range(1, N_ITEMS + 1), 3)


def session():
    n = random.randint(8, MAXLEN + 1)
    cur = random.randint(1, N_ITEMS)
    out = [cur]
    while len(out) < n:
        r = random.random()
        if r < 0.05:
            cur = random.randint(1, N_ITEMS)
        else:
            cur = links[cur][0 if r < 0.62 else 1 if r < 0.87 else 2]
        out.append(cur)
    return out


def collate(sessions):
    L = min(max(len(s) for s in sessions), MAXLEN)
    ids, att, lab = [], [], []
    for s in sessions:
        x, y = s[:MAXLEN], s[1:MAXLEN + 1]
        ids.append(x + [PAD] * (L - len(x)))
        att.append([1] * len(x) + [0] * (L - len(x)))
        lab.append(y + [-100] * (L - len(y)))
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(att), "labels": torch.tensor(lab)}


train = [session() for _ in range(5000)]
valid = [session() for _ in range(300)]
loader = DataLoader(train, batch_size=32, shuffle=True, collate_fn=collate, drop_last=True)

cfg = GPT2Config(vocab_size=N_ITEMS + 1, n_positions=MAXLEN, n_embd=64, n_layer=2, n_head=4,
                 resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)
model = GPT2LMHeadModel(cfg)
EPOCHS = 2
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
sched = get_linear_schedule_with_warmup(opt, 50, EPOCHS * len(loader))


@torch.no_grad()
def hit_rate(k):
    model.eval()
    hits = 0
    for s in valid:
        s = s[:MAXLEN]
        logits = model(input_ids=torch.tensor([s[:-1]])).logits[0, -1]
        hits += int(s[-1] in logits.topk(k).indices.tolist())
    model.train()
    return hits / len(valid)


t0, step = time.time(), 0
for epoch in range(EPOCHS):
    for batch in loader:
        out = model(**batch)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        if step % 50 == 0:
            print(f"epoch {epoch} step {step} loss {out.loss.item():.4f} lr {sched.get_last_lr()[0]:.5f} ({time.time()-t0:.0f}s)", flush=True)
        step += 1
print(f"hit@1 {hit_rate(1):.3f}  hit@3 {hit_rate(3):.3f}")
