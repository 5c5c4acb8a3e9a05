import torch
torch.set_num_threads(1)
from transformers import BertConfig, BertForMaskedLM
from pydoc_data.topics import topics

torch.manual_seed(101)

LENGTH, WIDTH, BASE_LR = 40, 96, 2e-3
MASK = 127
blob = "".join(topics[k] for k in sorted(topics)).encode("ascii", "ignore")
stream = torch.tensor(list(blob[:300000]))

cfg = BertConfig(vocab_size=128, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4,
                 intermediate_size=2 * WIDTH, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
                 attention_probs_dropout_prob=0.0)
model = BertForMaskedLM(cfg)


def param_groups(model, base_lr, width):
    hidden, other = [], []
    for name, p in model.named_parameters():
        (hidden if p.ndim == 2 and "embeddings" not in name else other).append(p)
    mult = 1 / width
    return [{"params": hidden, "lr": base_lr * mult, "weight_decay": 0.01},
            {"params": other, "lr": base_lr * mult, "weight_decay": 0.0}]


def mlm_batch(n=12):
    at = torch.randint(0, len(stream) - LENGTH, (n,))
    ids = stream[at[:, None] + torch.arange(LENGTH)]
    pick = torch.rand(ids.shape) < 0.15
    return ids.masked_fill(pick, MASK), ids.masked_fill(~pick, -100)


optimizer = torch.optim.AdamW(param_groups(model, BASE_LR, WIDTH), betas=(0.9, 0.98))
model.train()
avg = None
for step in range(150):
    ids, labels = mlm_batch()
    loss = model(input_ids=ids, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    avg = loss.item() if avg is None else 0.9 * avg + 0.1 * loss.item()
    if step % 15 == 0 or step == 149:
        print(f"step {step}: loss {avg:.4f}")
