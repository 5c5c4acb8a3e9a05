import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(21)
random.seed(21)
N_MELS, N_CHARS = 24, 12
PROTO = torch.randn(N_CHARS + 1, N_MELS) * 12.0
MEL_MEAN = torch.linspace(-25.0, -60.0, N_MELS)


class Speech(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        r = random.Random(seed)
        self.items = []
        for _ in range(n):
            text = [r.randint(1, N_CHARS)]
            for _ in range(r.randint(3, 7)):
                text.append(r.choice([c for c in range(1, N_CHARS + 1) if c != text[-1]]))
            frames = []
            for c in text:
                frames += [PROTO[c]] * r.randint(5, 8)
            x = torch.stack(frames)
            x = x + MEL_MEAN + 10.0 * torch.randn(x.shape, generator=g)
            self.items.append((x, torch.tensor(text)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    xs, ys = zip(*batch)
    x_len = torch.tensor([len(x) for x in xs])
    y_len = torch.tensor([len(y) for y in ys])
    x = nn.utils.rnn.pad_sequence(xs, batch_first=True, padding_value=-80.0)
    return x, x_len, torch.cat(ys), y_len


class Recognizer(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.conv = nn.Sequential(
            nn.BatchNorm1d(N_MELS),
            nn.Conv1d(N_MELS, hidden, 5, padding=2), nn.BatchNorm1d(hidden), nn.ReLU(),
            nn.Conv1d(hidden, hidden, 5, stride=2, padding=2), nn.BatchNorm1d(hidden), nn.ReLU(),
        )
        self.dropout = nn.Dropout(0.2)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, N_CHARS + 1)

    def forward(self, x, x_len):
        h = self.conv(x.transpose(1, 2)).transpose(1, 2)
        out_len = (x_len - 1) // 2 + 1
        packed = nn.utils.rnn.pack_padded_sequence(self.dropout(h), out_len, batch_first=True, enforce_sorted=False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return F.log_softmax(self.fc(h), dim=-1), out_len


def edit_distance(a, b):
    d = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        prev, d[0] = d[0], i
        for j, y in enumerate(b, 1):
            prev, d[j] = d[j], min(d[j] + 1, d[j - 1] + 1, prev + (x != y))
    return d[-1]


def validate(model, loader, ctc):
    model.eval()
    errors = chars = 0
    losses = []
    with torch.no_grad():
        for x, xl, y, yl in loader:
            lp, ol = model(x, xl)
            losses.append(ctc(lp.transpose(0, 1), y, ol, yl).item())
            best = lp.argmax(-1)
            refs = y.split(yl.tolist())
            for i, ref in enumerate(refs):
                path = torch.unique_consecutive(best[i, :ol[i]]).tolist()
                hyp = [c for c in path if c != 0]
                errors += edit_distance(hyp, ref.tolist())
                chars += len(ref)
    return sum(losses) / len(losses), errors / chars


train_loader = DataLoader(Speech(900, 1), batch_size=24, shuffle=True, collate_fn=collate)
val_loader = DataLoader(Speech(200, 2), batch_size=50, collate_fn=collate)
model = Recognizer()
ctc = nn.CTCLoss(blank=0, zero_infinity=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

loss, cer = validate(model, val_loader, ctc)
print(f"before training: val loss {loss:.3f} CER {cer:.3f}")
for epoch in range(5):
    model.train()
    running = 0.0
    for x, xl, y, yl in train_loader:
        optimizer.zero_grad()
        lp, ol = model(x, xl)
        loss = ctc(lp.transpose(0, 1), y, ol, yl)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        running += loss.item()
    vl, cer = validate(model, val_loader, ctc)
    print(f"epoch {epoch}: train loss {running / len(train_loader):.4f} val loss {vl:.4f} CER {cer:.4f}")
