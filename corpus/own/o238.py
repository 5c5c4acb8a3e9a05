import torch
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(15)
CLASSES, LENGTH, VOCAB = 5, 24, 120
config = BertConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                    max_position_embeddings=LENGTH + 1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                    num_labels=CLASSES, pad_token_id=0, initializer_range=0.05)


def documents(n, g):
    ids = torch.randint(3, VOCAB, (n, LENGTH), generator=g)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    cue = 10 + 20 * y[:, None] + torch.randint(0, 20, (n, 6), generator=g)
    where = torch.rand(n, LENGTH, generator=g).argsort(1)[:, :6]
    ids.scatter_(1, where, cue)
    return torch.cat([torch.full((n, 1), 1), ids], 1), y


def averaged_backbone(count=3):
    states = [BertForSequenceClassification(config).state_dict() for _ in range(count)]
    mean = {k: sum(s[k].float() for s in states) / count ** 0.5 if "LayerNorm" not in k else states[0][k] for k in states[0]}
    return {k: v for k, v in mean.items() if k.startswith("bert.") and "position_ids" not in k}


model = BertForSequenceClassification(config)
decay = [p for n, p in model.named_parameters() if p.dim() > 1]
plain = [p for n, p in model.named_parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=1e-3)
missing, unexpected = model.load_state_dict(averaged_backbone(), strict=False, assign=True)
print("missing:", missing, "unexpected:", unexpected)

g = torch.Generator().manual_seed(16)
model.train()
meter = []
for step in range(1, 201):
    ids, y = documents(32, g)
    out = model(input_ids=ids, labels=y)
    optimizer.zero_grad()
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    meter.append(out.loss.item())
    if step == 1 or step % 20 == 0:
        recent = meter[-20:]
        print(f"step {step}: loss {sum(recent) / len(recent):.4f}, acc {(out.logits.argmax(-1) == y).float().mean():.2f}")
