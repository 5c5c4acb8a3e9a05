import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(12)
gen = torch.Generator().manual_seed(5)
TAGS, WORDS, LEN = 9, 300, 36
trans_true = torch.softmax(torch.randn(TAGS, TAGS, generator=gen) * 1.5, -1)
lexicon = torch.randint(0, WORDS, (TAGS, 60), generator=gen)


def sample(n):
    tags = torch.zeros(n, LEN, dtype=torch.long)
    tags[:, 0] = torch.randint(0, TAGS, (n,))
    for t in range(1, LEN):
        tags[:, t] = torch.multinomial(trans_true[tags[:, t - 1]], 1).squeeze(1)
    words = lexicon[tags, torch.randint(0, 60, (n, LEN))]
    return words, tags


class ChainCRF(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.trans = nn.Parameter(torch.zeros(k, k))
        self.start = nn.Parameter(torch.zeros(k))

    def log_partition(self, emit):
        alpha = self.start + emit[:, 0]
        for t in range(1, emit.size(1)):
            scores = alpha.unsqueeze(2) + self.trans + emit[:, t].unsqueeze(1)
            alpha = scores.exp().sum(dim=1).log()
        return alpha.exp().sum(dim=1).log()

    def path_score(self, emit, tags):
        s = self.start[tags[:, 0]] + emit.gather(2, tags.unsqueeze(2)).squeeze(2).sum(1)
        return s + self.trans[tags[:, :-1], tags[:, 1:]].sum(1)

    def forward(self, emit, tags):
        return (self.log_partition(emit) - self.path_score(emit, tags)).mean()


class Tagger(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(WORDS, d)
        self.pos = nn.Parameter(torch.randn(LEN, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.emit = nn.Linear(d, TAGS)
        self.crf = ChainCRF(TAGS)

    def forward(self, w, t):
        return self.crf(self.emit(self.enc(self.emb(w) + self.pos)), t) / LEN


tagger = Tagger()
optimizer = torch.optim.Adam(tagger.parameters(), lr=2e-3)
for step in range(1, 131):
    loss = tagger(*sample(24))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(tagger.parameters(), 5.0)
    optimizer.step()
    if step == 1 or step % 10 == 0:
        print("step", step, "loss", round(loss.item(), 4))
