import torch
from transformers import BertConfig, BertForMaskedLM, get_linear_schedule_with_warmup

torch.manual_seed(14)
TOPICS, WORDS, LEN, MASK = 10, 5, 16, 4
VOCAB = 5 + TOPICS * WORDS
freq = torch.tensor([0.6, 0.2, 0.1, 0.05, 0.05])
shuffled = 5 + torch.randperm(TOPICS * WORDS)


def text(n):
    topic = torch.randint(0, TOPICS, (n, 1))
    word = torch.multinomial(freq, n * LEN, replacement=True).view(n, LEN)
    return shuffled[topic * WORDS + word]


def collate(x):
    labels = x.clone()
    chosen = torch.rand(x.shape) < 0.15
    labels[~chosen] = -100
    ids = x.clone()
    r = torch.rand(x.shape)
    ids[chosen & (r < 0.8)] = MASK
    swap = chosen & (r >= 0.8) & (r < 0.9)
    ids[swap] = torch.randint(5, VOCAB, x.shape)[swap]
    return ids, labels


config = BertConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                    max_position_embeddings=LEN, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
model = BertForMaskedLM(config)
data, held = text(4000), text(400)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
STEPS = 250
sched = get_linear_schedule_with_warmup(opt, 35, STEPS)
model.train()
for step in range(STEPS):
    ids, labels = collate(data[torch.randint(0, len(data), (32,))])
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    opt.zero_grad()
    if step % 25 == 0 or step == STEPS - 1:
        print(f"step {step} mlm loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    ids, labels = collate(held)
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    m = labels != -100
    loss = torch.nn.functional.cross_entropy(logits[m], labels[m])
    print(f"held-out mlm loss {loss.item():.4f} accuracy {(logits.argmax(-1) == labels)[m].float().mean().item():.4f}")
