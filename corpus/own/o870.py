import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.manual_seed(0)
rng = torch.Generator().manual_seed(21)
N_MEL, N_WORDS = 12, 8
words = torch.randn(N_WORDS, 6, N_MEL, generator=rng)


def utterance():
    w = int(torch.randint(0, N_WORDS, (1,), generator=rng))
    T = int(torch.randint(14, 40, (1,), generator=rng))
    x = 0.6 * torch.randn(T, N_MEL, generator=rng)
    at = int(torch.randint(0, T - 12, (1,), generator=rng))
    x[at:at + 12] += words[w].repeat_interleave(2, 0)
    return x, w


class SpeechDataset(torch.utils.data.Dataset):
    def __init__(self, n):
        self.items = [utterance() for _ in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    feats, words_ = zip(*batch)
    lengths = torch.tensor([len(f) for f in feats])
    labels = torch.tensor(words_)
    lengths, order = lengths.sort(descending=True)
    feats = pad_sequence([feats[i] for i in order], batch_first=True)
    return feats, lengths, labels[order]


class KeywordSpotter(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.rnn = nn.GRU(N_MEL, d, batch_first=True, bidirectional=True)
        self.score = nn.Linear(2 * d, 1)
        self.cls = nn.Linear(2 * d, N_WORDS)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        h, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        mask = torch.arange(h.shape[1])[None] >= lengths[:, None]
        a = self.score(h).squeeze(-1).masked_fill(mask, float("-inf")).softmax(1)
        return self.cls(torch.einsum("bt,btd->bd", a, h))


train_dl = torch.utils.data.DataLoader(SpeechDataset(1600), batch_size=32, shuffle=True, collate_fn=collate, drop_last=True, generator=torch.Generator().manual_seed(1))
test_set = SpeechDataset(300)
model = KeywordSpotter()
optim = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(6):
    model.train()
    running, seen = 0.0, 0
    for x, lengths, y in train_dl:
        optim.zero_grad()
        loss = criterion(model(x, lengths), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optim.step()
        running += loss.item()
        seen += 1
    print("epoch", epoch, "loss", round(running / seen, 4))

model.eval()
correct = 0
with torch.no_grad():
    for x, w in test_set.items:
        correct += int(model(x[None], torch.tensor([len(x)])).argmax(-1).item() == w)
print("test accuracy", correct / len(test_set))
