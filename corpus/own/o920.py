import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

torch.manual_seed(6)
VOCAB, LEN = 100, 18
CLS, SEP, NOT = 1, 2, 3
POS, NEG = torch.arange(10, 25), torch.arange(25, 40)


def reviews(n):
    ids = torch.randint(40, VOCAB, (n, LEN))
    labels = torch.randint(0, 2, (n,))
    ids[:, 0], ids[:, -1] = CLS, SEP
    for i in range(n):
        spots = 2 + torch.randperm(5)[:3] * 3
        for s in spots.tolist():
            polarity = labels[i].item() if torch.rand(1) < 0.9 else 1 - labels[i].item()
            negated = torch.rand(1) < 0.1
            words = POS if (polarity == 1) != negated.item() else NEG
            ids[i, s] = words[torch.randint(0, 15, (1,))]
            if negated:
                ids[i, s - 1] = NOT
    return TensorDataset(ids, labels)


train_loader = DataLoader(reviews(3000), batch_size=32, shuffle=True)
test_loader = DataLoader(reviews(500), batch_size=100)

config = BertConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=128, max_position_embeddings=LEN, num_labels=2,
                    hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
model = BertForSequenceClassification(config)
epochs = 4
learning_rate = 5e-4
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
num_steps = epochs * len(train_loader)
scheduler = get_linear_schedule_with_warmup(optimizer, num_steps // 10, num_steps)


def test():
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for ids, labels in test_loader:
            out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels)
            loss += out.loss.item() * len(ids)
            correct += (out.logits.argmax(-1) == labels).sum().item()
    return loss / 500, correct / 500


for epoch in range(epochs):
    model.train()
    running = 0.0
    for ids, labels in train_loader:
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        running += out.loss.item()
    loss, acc = test()
    print(f"epoch {epoch + 1}: train loss {running / len(train_loader):.4f} test loss {loss:.4f} acc {acc:.3f}")
