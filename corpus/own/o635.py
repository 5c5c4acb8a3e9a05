import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(2)

N_MELS, VOCAB, BLANK = 20, 11, 0
prototypes = torch.randn(VOCAB, N_MELS)


class Utterances(torch.utils.data.Dataset):
    def __init__(self, n, seed, fast_rate):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            L = int(torch.randint(3, 9, (1,), generator=g))
            target = torch.randint(1, VOCAB, (L,), generator=g)
            fast = torch.rand(1, generator=g).item() < fast_rate
            lo, hi = (2, 4) if fast else (7, 12)
            durations = torch.randint(lo, hi, (L,), generator=g)
            feats = prototypes[target].repeat_interleave(durations, dim=0)
            feats = feats + 0.5 * torch.randn(feats.shape, generator=g)
            self.items.append((feats, target))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    feats, targets = zip(*batch)
    feat_lens = torch.tensor([f.shape[0] for f in feats])
    target_lens = torch.tensor([t.shape[0] for t in targets])
    return pad_sequence(feats, batch_first=True), feat_lens, torch.cat(targets), target_lens


class ConvSubsampling(nn.Module):
    def __init__(self, n_mels, d_model):
        super().__init__()
        self.conv = nn.ModuleList([
            nn.Conv1d(n_mels, d_model, 3, stride=2, padding=1),
            nn.Conv1d(d_model, d_model, 3, stride=2, padding=1),
        ])

    def forward(self, x, lengths):
        x = x.transpose(1, 2)
        for conv in self.conv:
            x = F.relu(conv(x))
            lengths = (lengths - 1) // 2 + 1
        return x.transpose(1, 2), lengths


class CTCModel(nn.Module):
    def __init__(self, d_model=64):
        super().__init__()
        self.subsampling = ConvSubsampling(N_MELS, d_model)
        self.norm = nn.LayerNorm(d_model)
        self.rnn = nn.GRU(d_model, d_model, num_layers=1, bidirectional=True, batch_first=True)
        self.classifier = nn.Linear(2 * d_model, VOCAB)

    def forward(self, feats, lengths):
        x, lengths = self.subsampling(feats, lengths)
        x, _ = self.rnn(self.norm(x))
        return self.classifier(x), lengths


def greedy_decode(logits, lengths):
    out = []
    for row, n in zip(logits.argmax(-1), lengths):
        ids = torch.unique_consecutive(row[:n])
        out.append(ids[ids != BLANK].tolist())
    return out


def edit_distance(a, b):
    prev = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        cur = [i]
        for j, y in enumerate(b, 1):
            cur.append(min(prev[j] + 1, cur[-1] + 1, prev[j - 1] + (x != y)))
        prev = cur
    return prev[-1]


@torch.no_grad()
def token_error_rate(model, loader):
    model.eval()
    err = tot = 0
    for feats, feat_lens, targets, target_lens in loader:
        logits, out_lens = model(feats, feat_lens)
        for hyp, ref in zip(greedy_decode(logits, out_lens), targets.split(target_lens.tolist())):
            err += edit_distance(hyp, ref.tolist())
            tot += len(ref)
    model.train()
    return err / tot


train_loader = torch.utils.data.DataLoader(Utterances(1440, 1, 0.004), batch_size=24, shuffle=True,
                                           collate_fn=collate, drop_last=True)
dev_loader = torch.utils.data.DataLoader(Utterances(96, 2, 0.0), batch_size=48, collate_fn=collate)

model = CTCModel()
criterion = nn.CTCLoss(blank=BLANK)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
step = 0
for epoch in range(4):
    for feats, feat_lens, targets, target_lens in train_loader:
        logits, out_lens = model(feats, feat_lens)
        log_probs = logits.log_softmax(-1).transpose(0, 1)
        loss = criterion(log_probs, targets, out_lens, target_lens)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step} ctc {loss.item():.4f}")
        step += 1
    print(f"epoch {epoch} dev ter {token_error_rate(model, dev_loader):.3f}")
