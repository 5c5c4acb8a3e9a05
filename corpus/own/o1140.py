import random
import torch, torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel
from pydoc_data.topics import topics

torch.manual_seed(7); random.seed(7)
text = "\n".join(topics[k] for k in sorted(topics))
text = "".join(c for c in text if ord(c) < 127)[:400_000]
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text])
split = int(0.95 * len(ids))
T, B, STEPS = 64, 16, 270


def build():
    cfg = GPT2Config(vocab_size=len(chars), n_positions=T + 3, n_embd=96, n_layer=2, n_head=4,
                     resid_pdrop=0., embd_pdrop=0., attn_pdrop=0., bos_token_id=None, eos_token_id=None,
                     tie_word_embeddings=False)
    return GPT2LMHeadModel(cfg)


def add_sentinels(model, names):
    old_in, old_out = model.transformer.wte, model.lm_head
    n, d = old_in.weight.shape
    new_in, new_out = nn.Embedding(n + len(names), d), nn.Linear(d, n + len(names), bias=False)
    nn.init.normal_(new_in.weight, std=0.02)
    nn.init.normal_(new_out.weight, std=0.02)
    with torch.no_grad():
        new_in.weight[:n] = old_in.weight
        new_out.weight[:n] = old_out.weight
    model.transformer.wte, model.lm_head = new_in, new_out
    model.config.vocab_size = n + len(names)
    return {name: n + i for i, name in enumerate(names)}


def fim(chunk, sp):
    if random.random() < 0.5:
        a, b = sorted(random.sample(range(1, T), 2))
        P, S, M = (torch.tensor([sp[k]]) for k in ("<pre>", "<suf>", "<mid>"))
        return torch.cat([P, chunk[:a], S, chunk[b:], M, chunk[a:b]])
    return torch.cat([torch.tensor([sp["<pre>"]] * 3), chunk])


def batch(lo, hi, sp):
    ix = torch.randint(lo, hi - T, (B,))
    return torch.stack([fim(ids[i:i + T], sp) for i in ix.tolist()])


model = build()
sp = add_sentinels(model, ["<pre>", "<suf>", "<mid>"])
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
sched = torch.optim.lr_scheduler.SequentialLR(opt, [
    torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, 30),
    torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS - 30, 1e-4)], milestones=[30])

for step in range(STEPS):
    x = batch(0, split, sp)
    loss = model(input_ids=x, labels=x).loss
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step(); sched.step()
    if step % 25 == 0 or step == STEPS - 1:
        print(f"{step:4d} | loss {loss.item():.3f} | lr {sched.get_last_lr()[0]:.2e}", flush=True)

model.eval()
with torch.no_grad():
    v = sum(model(input_ids=x, labels=x).loss.item() for x in (batch(split, len(ids), sp) for _ in range(8))) / 8
print(f"held-out loss {v:.3f}")
