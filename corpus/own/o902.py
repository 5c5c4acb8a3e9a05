import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(17)
VOCAB, TAGS, LENGTH = 120, 5, 20
TITLES, PREPS, NAMES = range(0, 10), range(10, 20), range(20, 70)
O, B_PER, B_LOC, B_ORG, I_ENT = range(5)


def build(n):
    words = torch.randint(70, VOCAB, (n, LENGTH))
    tags = torch.zeros(n, LENGTH, dtype=torch.long)
    for i in range(n):
        t = int(torch.randint(0, 3, (1,)))
        while t < LENGTH - 3:
            kind = int(torch.randint(0, 3, (1,)))
            if kind == 0:
                words[i, t] = torch.randint(0, 10, (1,))
            elif kind == 1:
                words[i, t] = torch.randint(10, 20, (1,))
            words[i, t + 1] = torch.randint(20, 70, (1,))
            tags[i, t + 1] = (B_PER, B_LOC, B_ORG)[kind]
            if torch.rand(1) < 0.5:
                words[i, t + 2] = torch.randint(20, 70, (1,))
                tags[i, t + 2] = I_ENT
            t += int(torch.randint(4, 7, (1,)))
    return TensorDataset(words, tags)


class Tagger(nn.Module):
    def __init__(self, d_model=64, nhead=4, num_layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, d_model)
        self.pos = nn.Embedding(LENGTH, d_model)
        encoder_layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward=128, dropout=0.1)
        self.encoder = nn.TransformerEncoder(encoder_layer, num_layers)
        self.classifier = nn.Linear(d_model, TAGS)

    def forward(self, words):
        positions = torch.arange(words.size(1)).unsqueeze(0)
        x = self.embed(words) + self.pos(positions)
        return self.classifier(self.encoder(x))


def run_epoch(model, loader, criterion, optimizer=None, scheduler=None):
    model.train(optimizer is not None)
    total, tp, fp, fn = 0.0, 0, 0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for words, tags in loader:
            logits = model(words)
            loss = criterion(logits.view(-1, TAGS), tags.view(-1))
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
            pred = logits.argmax(-1)
            total += loss.item() * len(words)
            tp += ((pred == tags) & (tags != O)).sum().item()
            fp += ((pred != tags) & (pred != O)).sum().item()
            fn += ((pred != tags) & (tags != O)).sum().item()
    return total / len(loader.dataset), 2 * tp / max(1, 2 * tp + fp + fn)


train_loader = DataLoader(build(2500), batch_size=32, shuffle=True)
test_loader = DataLoader(build(400), batch_size=32)
model = Tagger()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
EPOCHS = 5
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=EPOCHS * len(train_loader), pct_start=0.15)

for epoch in range(EPOCHS):
    tr_loss, tr_f1 = run_epoch(model, train_loader, criterion, optimizer, scheduler)
    te_loss, te_f1 = run_epoch(model, test_loader, criterion)
    print(f"epoch {epoch + 1} train loss {tr_loss:.4f} f1 {tr_f1:.3f} | test loss {te_loss:.4f} f1 {te_f1:.3f}")
