import torch
from transformers import BertConfig, BertForMaskedLM

torch.manual_seed(3)
PAD, CLS, MASK, FIRST = 0, 1, 2, 3
WORDS, LEN = 24, 24
VOCAB = FIRST + WORDS
partner = torch.randperm(WORDS)


def sentences(n):
    lengths = torch.randint(5, LEN // 2, (n,))
    half = torch.randint(0, WORDS, (n, LEN // 2))
    pair = torch.stack([half, partner[half]], 2).flatten(1)
    ids = torch.cat([torch.full((n, 1), CLS), pair + FIRST], 1)
    keep = torch.arange(LEN + 1)[None] <= 2 * lengths[:, None]
    return ids.masked_fill(~keep, PAD), keep.long()


def corrupt(ids, rate=0.25):
    special = ids < FIRST
    chosen = (torch.rand(ids.shape) < rate) & ~special
    labels = ids.masked_fill(~chosen, -100)
    u = torch.rand(ids.shape)
    ids = torch.where(chosen & (u < 0.8), MASK, ids)
    ids = torch.where(chosen & (u >= 0.8) & (u < 0.9), torch.randint(FIRST, VOCAB, ids.shape), ids)
    return ids, labels


model = BertForMaskedLM(BertConfig(
    vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
    max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=PAD, initializer_range=0.08))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 40, 1.0) * (1 - s / 420))
model.train()
for step in range(400):
    ids, keep = sentences(48)
    noisy, labels = corrupt(ids)
    loss = model(input_ids=noisy, attention_mask=keep, labels=labels).loss
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % 40 == 0:
        share = (labels != -100).float().mean().item()
        print(f"step {step} mlm loss {loss.item():.4f} share of positions scored {share:.3f}")
model.eval()
with torch.no_grad():
    ids, keep = sentences(400)
    noisy, labels = corrupt(ids, 0.1)
    pred = model(input_ids=noisy, attention_mask=keep).logits.argmax(-1)
    where = (labels != -100) & (noisy == MASK)
    print(f"held-out accuracy at masked positions {(pred == labels)[where].float().mean().item():.3f}")
