import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from pydoc_data.topics import topics
from torch import nn
from torch.utils.data import DataLoader, Dataset

ACCUM = 8
set_seed(21)


class TopicWords(Dataset):
    def __init__(self, names, length=40):
        self.rows = []
        vocab = {}
        for label, name in enumerate(names):
            words = topics[name].lower().split()
            for i in range(0, len(words) - length, 5):
                ids = [vocab.setdefault(w, len(vocab)) for w in words[i:i + length]]
                self.rows.append((torch.tensor(ids), label))
        self.vocab = len(vocab)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Reader(nn.Module):
    def __init__(self, vocab, classes, d=48):
        super().__init__()
        self.words = nn.Embedding(vocab, d)
        self.norm = nn.LayerNorm(d)
        self.mix = nn.MultiheadAttention(d, 4, batch_first=True)
        self.query = nn.Parameter(torch.randn(1, 1, d) * 0.1)
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, classes))

    def forward(self, ids):
        h = self.norm(self.words(ids))
        h = h + self.mix(h, h, h, need_weights=False)[0]
        pooled = self.mix(self.query.expand(len(ids), -1, -1), h, h, need_weights=False)[0] + h.mean(1, keepdim=True)
        return self.out(pooled.squeeze(1))


names = sorted(topics, key=lambda k: -len(topics[k]))[:8]
data = TopicWords(names)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUM)
model = Reader(data.vocab, len(names))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
criterion = nn.CrossEntropyLoss(label_smoothing=0.0)
micro, updates, seen = 0, 0, []
while updates < 120:
    for ids, label in loader:
        with accelerator.accumulate(model):
            loss = criterion(model(ids), label)
            seen.append(loss.item())
            accelerator.backward(loss / ACCUM)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            updates += 1
            if updates == 1 or updates % 15 == 0:
                accelerator.print(f"update {updates} loss {sum(seen) / len(seen):.4f}")
                seen = []
            if updates == 120:
                break
