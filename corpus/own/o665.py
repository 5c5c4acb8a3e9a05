import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(3)
rng = np.random.default_rng(3)

TAGS = ["intergenic", "exon0", "exon1", "exon2", "donor", "intron", "acceptor"]
K, T = len(TAGS), 40
TRANS = np.zeros((K, K))
TRANS[0, [0, 1]] = 0.8, 0.2
TRANS[1, 2] = 1.0
TRANS[2, 3] = 1.0
TRANS[3, [1, 4, 0]] = 0.65, 0.2, 0.15
TRANS[4, 5] = 1.0
TRANS[5, [5, 6]] = 0.75, 0.25
TRANS[6, 1] = 1.0
EMIT = np.array([[.35, .15, .15, .35], [.10, .30, .50, .10], [.50, .20, .10, .20], [.05, .45, .45, .05],
                 [.02, .03, .90, .05], [.25, .20, .05, .50], [.90, .03, .05, .02]])


def sample(n):
    xs, ys = np.zeros((n, T), int), np.zeros((n, T), int)
    for i in range(n):
        z = 0
        for t in range(T):
            ys[i, t] = z
            xs[i, t] = rng.choice(4, p=EMIT[z])
            z = rng.choice(K, p=TRANS[z])
    return torch.from_numpy(xs), torch.from_numpy(ys)


class CRF(nn.Module):
    def __init__(self, n_tags):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(n_tags))
        self.trans = nn.Parameter(torch.randn(n_tags, n_tags) * 0.1)

    def path_score(self, em, tags):
        unary = em.gather(2, tags.unsqueeze(-1)).squeeze(-1).sum(1)
        return self.start[tags[:, 0]] + unary + self.trans[tags[:, :-1], tags[:, 1:]].sum(1)

    def log_partition(self, em):
        alpha = self.start + em[:, 0]
        for t in range(1, em.size(1)):
            scores = alpha.unsqueeze(2) + self.trans + em[:, t].unsqueeze(1)
            alpha = scores.exp().sum(1).log()
        return alpha.exp().sum(1).log()

    def forward(self, em, tags):
        return (self.log_partition(em) - self.path_score(em, tags)).mean()

    @torch.no_grad()
    def viterbi(self, em):
        score, back = self.start + em[:, 0], []
        for t in range(1, em.size(1)):
            best, idx = (score.unsqueeze(2) + self.trans).max(1)
            back.append(idx)
            score = best + em[:, t]
        path = [score.argmax(1)]
        for idx in reversed(back):
            path.append(idx.gather(1, path[-1].unsqueeze(1)).squeeze(1))
        return torch.stack(path[::-1], 1)


class Tagger(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(4, d)
        self.pos = nn.Parameter(torch.randn(T, d) * 0.02)
        self.conv = nn.Conv1d(d, d, 7, padding=3)
        self.enc = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.1, batch_first=True, norm_first=True)
        self.out = nn.Linear(d, K)
        self.crf = CRF(K)

    def emissions(self, x):
        h = self.emb(x) + self.pos
        h = h + torch.relu(self.conv(h.transpose(1, 2))).transpose(1, 2)
        return self.out(self.enc(h))

    def loss(self, x, y):
        return self.crf(self.emissions(x), y)


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        pred = model.crf.viterbi(model.emissions(x))
    model.train()
    return (pred == y).float().mean().item()


train_x, train_y = sample(800)
test_x, test_y = sample(200)
model = Tagger()
opt = torch.optim.Adam([
    {"params": [p for n, p in model.named_parameters() if not n.startswith("crf.")], "lr": 2e-3},
    {"params": model.crf.parameters(), "lr": 1e-2},
])

step = 0
for epoch in range(5):
    for idx in torch.randperm(len(train_x)).split(24):
        loss = model.loss(train_x[idx], train_y[idx])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        step += 1
        if step % 20 == 0:
            print(f"epoch {epoch} step {step} nll/base {loss.item() / T:.4f}")
print(f"tag accuracy on held-out contigs: {accuracy(model, test_x, test_y):.3f}")
