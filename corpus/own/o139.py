import random
import torch
torch.set_num_threads(1)
from transformers import T5Config, T5ForConditionalGeneration, get_linear_schedule_with_warmup, set_seed

set_seed(21)
PAD, EOS = 0, 1
MAX_SRC, MAX_TGT = 10, 48
names = torch.randint(2, 18, (10, 4), generator=torch.Generator().manual_seed(8)).tolist()


def make_pair(rng):
    topic = rng.randrange(10)
    src = [20 + topic * 4 + rng.randrange(4) if rng.random() < 0.6 else 20 + rng.randrange(40) for _ in range(rng.randint(6, 9))]
    return src + [EOS], names[topic] + [EOS]


def encode(pairs):
    ids = torch.full((len(pairs), MAX_SRC), PAD)
    labels = torch.full((len(pairs), MAX_TGT), PAD)
    for r, (s, t) in enumerate(pairs):
        ids[r, :len(s)] = torch.tensor(s)
        labels[r, :len(t)] = torch.tensor(t)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


config = T5Config(vocab_size=60, d_model=64, d_kv=16, d_ff=128, num_layers=1, num_decoder_layers=2, num_heads=4,
                  dropout_rate=0.0, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD,
                  feed_forward_proj="gated-gelu", tie_word_embeddings=False)
model = T5ForConditionalGeneration(config)
rng = random.Random(4)
steps = 100
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = get_linear_schedule_with_warmup(optimizer, 10, steps)
test = encode([make_pair(rng) for _ in range(64)])


def token_accuracy():
    model.eval()
    with torch.no_grad():
        labels = test["labels"]
        logits = model(**test).logits
        real = labels > 0
        ok = (logits.argmax(-1) == labels)[real].float().mean().item()
        nll = torch.nn.functional.cross_entropy(logits[real], labels[real]).item()
    model.train()
    return ok, nll


model.train()
for step in range(1, steps + 1):
    batch = encode([make_pair(rng) for _ in range(16)])
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % 20 == 0 or step == 1:
        print(f"{step}/{steps} loss: {loss.item():.4f}")
    if step % 20 == 0:
        acc, nll = token_accuracy()
        print(f"   answer tokens: accuracy {acc:.3f} nll {nll:.4f}")
