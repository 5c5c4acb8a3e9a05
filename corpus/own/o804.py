import random
import torch
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

torch.set_num_threads(1)
random.seed(10)
torch.manual_seed(10)

WORDS = ["<pad>", "<eos>", "while", "if", "print", "(", ")", "{", "}", "=", "+", "<", ";"] \
    + [chr(97 + i) for i in range(10)] + [str(i) for i in range(6)]
TOK = {w: i for i, w in enumerate(WORDS)}


def statement(vars_, depth):
    kind = random.random()
    v = random.choice(vars_)
    if kind < 0.45 or depth == 0:
        return [v, "=", v, "+", str(random.randrange(6)), ";"]
    if kind < 0.7:
        return ["print", "(", v, ")", ";"]
    body = sum((statement(vars_, depth - 1) for _ in range(random.randint(1, 2))), [])
    return [random.choice(["while", "if"]), "(", v, "<", random.choice(vars_), ")", "{"] + body + ["}"]


def program():
    vars_ = random.sample([chr(97 + i) for i in range(10)], 2)
    out = []
    for _ in range(random.randint(1, 5)):
        out += statement(vars_, 2)
    return [TOK[w] for w in out][:70] + [TOK["<eos>"]]


def collate(rows):
    n = max(map(len, rows))
    ids = torch.tensor([r + [0] * (n - len(r)) for r in rows])
    mask = torch.tensor([[1] * len(r) + [0] * (n - len(r)) for r in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


train = [program() for _ in range(3000)]
valid = collate([program() for _ in range(64)])
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_positions=80, n_embd=64, n_layer=2, n_head=4,
                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1,
                                   eos_token_id=1))
UPDATES, ACCUM, MICRO = 150, 4, 8
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
sched = get_cosine_schedule_with_warmup(opt, 15, UPDATES)


def chunks():
    while True:
        random.shuffle(train)
        for i in range(0, len(train) - MICRO * ACCUM, MICRO * ACCUM):
            block = sorted(train[i:i + MICRO * ACCUM], key=len)
            yield [collate(block[k:k + MICRO]) for k in range(0, len(block), MICRO)]


stream = chunks()
model.train()
for update in range(UPDATES):
    micro = next(stream)
    tokens = sum((m["labels"][:, 1:] != -100).sum() for m in micro)
    running = 0.0
    for m in micro:
        n = (m["labels"][:, 1:] != -100).sum()
        loss = model(**m).loss * (n / tokens)
        loss.backward()
        running += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    opt.zero_grad()
    if update % 15 == 0 or update == UPDATES - 1:
        model.eval()
        with torch.no_grad():
            v = model(**valid)
            lab = valid["labels"][:, 1:]
            acc = (v.logits[:, :-1].argmax(-1) == lab)[lab != -100].float().mean()
        model.train()
        print(f"update {update:3d} loss {running:.4f} valid {v.loss.item():.4f} next-token acc {acc:.3f}")
