import random

import torch
from transformers import T5Config, T5ForConditionalGeneration

random.seed(1)
torch.manual_seed(1)
UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def spell(n):
    if n < 20:
        return UNITS[n]
    if n < 100:
        return TENS[n // 10] + ("" if n % 10 == 0 else "-" + UNITS[n % 10])
    if n < 1000:
        return UNITS[n // 100] + " hundred" + ("" if n % 100 == 0 else " and " + spell(n % 100))
    return spell(n // 1000) + " thousand" + ("" if n % 1000 == 0 else " " + spell(n % 1000))


class CharTokenizer:
    pad_token_id, eos_token_id = 0, 1

    def __init__(self, alphabet):
        self.ids = {c: i + 2 for i, c in enumerate(alphabet)}
        self.vocab_size = len(alphabet) + 2

    def __call__(self, texts, max_length):
        out = torch.full((len(texts), max_length), self.pad_token_id)
        for r, t in enumerate(texts):
            row = [self.ids[c] for c in t][:max_length - 1] + [self.eos_token_id]
            out[r, :len(row)] = torch.tensor(row)
        return out, (out != self.pad_token_id).long()


tok = CharTokenizer("0123456789abcdefghijklmnopqrstuvwxyz -")


def batch(n):
    values = [random.randrange(10 ** random.randint(1, 4)) for _ in range(n)]
    source, mask = tok([str(v) for v in values], max_length=8)
    labels, keep = tok([spell(v) for v in values], max_length=64)
    return {"input_ids": source, "attention_mask": mask, "labels": labels}, keep.bool()


config = T5Config(vocab_size=tok.vocab_size, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_decoder_layers=2,
                  num_heads=4, dropout_rate=0.0, feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1,
                  decoder_start_token_id=0)
model = T5ForConditionalGeneration(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
for step in range(1, 111):
    inputs, keep = batch(16)
    out = model(**inputs)
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 or step % 10 == 0:
        print(f"step {step} loss {out.loss.item():.4f}")
with torch.no_grad():
    inputs, keep = batch(64)
    logits = model(**inputs).logits
    exact = torch.nn.functional.cross_entropy(logits[keep], inputs["labels"][keep])
    print(f"held out, letters only: {exact.item():.4f}")
