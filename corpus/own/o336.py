import random
import torch
from transformers import T5Config, T5ForConditionalGeneration

DIGITS = {str(d): d + 2 for d in range(10)}
END, PAD = 1, 0
MAX_TARGET = 32


def encode(s):
    return [DIGITS[c] for c in s] + [END]


def problem(rng):
    s = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 7)))
    return s, "".join(sorted(s))


def collate(pairs):
    src = [encode(a) for a, _ in pairs]
    tgt = [encode(b) for _, b in pairs]
    ls = max(map(len, src))
    ids = torch.tensor([s + [PAD] * (ls - len(s)) for s in src])
    labels = torch.tensor([t + [PAD] * (MAX_TARGET - len(t)) for t in tgt])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def real_loss(model, batch):
    with torch.no_grad():
        logits = model(**batch).logits
    y = batch["labels"].clone()
    y[y == PAD] = -100
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100).item()


def main():
    torch.manual_seed(50)
    rng = random.Random(50)
    config = T5Config(vocab_size=12, d_model=64, d_kv=16, d_ff=128, num_layers=1, num_decoder_layers=1, num_heads=4,
                      dropout_rate=0.0, decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=END,
                      relative_attention_num_buckets=16, relative_attention_max_distance=32)
    model = T5ForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    total = 0.0
    for step in range(1, 161):
        batch = collate([problem(rng) for _ in range(16)])
        out = model(**batch)
        optimizer.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += out.loss.item()
        if step == 1:
            print(f"step 1 loss {out.loss.item():.4f}")
        if step % 20 == 0:
            print(f"step {step} loss {total / 20:.4f}")
            total = 0.0
    model.eval()
    test = collate([problem(rng) for _ in range(64)])
    print(f"test loss per symbol {real_loss(model, test):.4f}")


main()
