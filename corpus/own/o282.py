import random
import torch
from torch.utils.data import DataLoader
from transformers import T5Config, T5ForConditionalGeneration, get_constant_schedule_with_warmup

random.seed(31)
torch.manual_seed(31)
ALPHABET = "abcdefghijklmnopqrstuvwxyz "
PAD, EOS = 0, 1
VOWELS = "aeiou"


def encode(s):
    return [ALPHABET.index(c) + 2 for c in s] + [EOS]


def make_pair():
    n = 1 if random.random() < 0.85 else random.randint(4, 6)
    words = ["".join(random.choice(ALPHABET[:26]) for _ in range(random.randint(2, 5))) for _ in range(n)]
    out = [w if w[0] in VOWELS else w[1:] + w[0] + "ay" for w in words]
    return " ".join(words), " ".join(out)


def pad_rows(rows, value):
    width = max(map(len, rows))
    return torch.tensor([r + [value] * (width - len(r)) for r in rows])


def collate(batch):
    src = pad_rows([encode(a) for a, _ in batch], PAD)
    tgt = pad_rows([encode(b) for _, b in batch], PAD)
    return {"input_ids": src, "attention_mask": (src != PAD).long(), "labels": tgt}


train_set = [make_pair() for _ in range(3000)]
test_set = [make_pair() for _ in range(60)]
loader = DataLoader(train_set, batch_size=16, shuffle=True, collate_fn=collate, drop_last=True)

config = T5Config(vocab_size=len(ALPHABET) + 2, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_decoder_layers=2, num_heads=4,
                  dropout_rate=0.0, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
model = T5ForConditionalGeneration(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = get_constant_schedule_with_warmup(optimizer, 20)

model.train()
for step, batch in enumerate(loader):
    if step == 140:
        break
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % 20 == 0 or step == 139:
        print({"step": step, "loss": round(loss.item(), 4), "lr": scheduler.get_last_lr()[0]})

model.eval()
with torch.no_grad():
    nll, count = 0.0, 0
    for a, b in test_set:
        ids = torch.tensor([encode(a)])
        tgt = torch.tensor([encode(b)])
        nll += model(input_ids=ids, labels=tgt).loss.item() * tgt.numel()
        count += tgt.numel()
print({"test_loss_per_character": round(nll / count, 4)})
