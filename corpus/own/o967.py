import random
from typing import List

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FILLER = "the a we it was and then so but really just still today again with for on my your please hello well".split()
TOPICS = "invoice refund charge parcel courier tracking password login email battery screen cable charger".split()
HELPFUL = "resolved checked replaced explained refunded confirmed arranged updated attached apologise".split()
EVASIVE = "whatever impossible elsewhere unclear unsure ignore nothing later perhaps cannot".split()
SPECIAL = ["<pad>", "<user>", "<bot>", "<eos>"]
VOCAB = {w: i for i, w in enumerate(SPECIAL + FILLER + TOPICS + HELPFUL + EVASIVE)}
PAD, USER, BOT, EOS = range(4)


def make_pair(rng: random.Random):
    """older turns + last question, and two replies of which annotators liked the first"""
    history: List[str] = []
    for _ in range(rng.randint(2, 5)):
        history += ["<user>"] + rng.choices(FILLER, k=rng.randint(3, 5)) + [rng.choice(TOPICS)]
        history += ["<bot>"] + rng.choices(FILLER, k=rng.randint(2, 4)) + [rng.choice(HELPFUL + EVASIVE)]
    question = ["<user>"] + rng.choices(FILLER, k=3) + rng.sample(TOPICS, 2)

    def reply(n_helpful):
        body = rng.choices(FILLER, k=rng.randint(3, 6))
        body += rng.sample(HELPFUL, n_helpful) + rng.sample(EVASIVE, 3 - n_helpful)
        rng.shuffle(body)
        return ["<bot>"] + body + ["<eos>"]

    worse, better = sorted(rng.sample(range(4), 2))
    return history + question, reply(better), reply(worse)


class PreferenceDataset(Dataset):
    def __init__(self, n, seed, max_len):
        rng = random.Random(seed)
        self.max_len = max_len
        self.rows = [make_pair(rng) for _ in range(n)]

    def __len__(self):
        return len(self.rows)

    def tokenize(self, prompt, reply):
        ids = [VOCAB[w] for w in prompt + reply]
        return torch.tensor(ids[: self.max_len])

    def __getitem__(self, i):
        prompt, chosen, rejected = self.rows[i]
        return self.tokenize(prompt, chosen), self.tokenize(prompt, rejected)


def collate(batch):
    seqs = [c for c, _ in batch] + [r for _, r in batch]
    ids = nn.utils.rnn.pad_sequence(seqs, batch_first=True, padding_value=PAD)
    lengths = torch.tensor([len(s) for s in seqs])
    return ids, lengths


class RewardModel(nn.Module):
    def __init__(self, vocab, d=48, heads=4, layers=2, max_len=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=PAD)
        self.pos = nn.Embedding(max_len, d)
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.score = nn.Linear(d, 1, bias=False)

    def forward(self, ids, lengths):
        n = ids.size(1)
        pos = (lengths[:, None] - 1 - torch.arange(n)[None]).clamp(min=0)
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        h = self.body(self.emb(ids) + self.pos(pos), mask=mask, src_key_padding_mask=ids.eq(PAD))
        last = h[torch.arange(len(ids)), lengths - 1]
        return self.score(last).squeeze(-1)


class RewardTrainer:
    def __init__(self, model, train, val, lr=1e-3, batch_size=32, epochs=3, center=0.01):
        self.model, self.center, self.epochs = model, center, epochs
        gen = torch.Generator().manual_seed(0)
        self.train_dl = DataLoader(train, batch_size, shuffle=True, collate_fn=collate, drop_last=True, generator=gen)
        self.val_dl = DataLoader(val, 64, collate_fn=collate)
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, lr, total_steps=epochs * len(self.train_dl), pct_start=0.1)

    def compute_loss(self, batch):
        ids, lengths = batch
        chosen, rejected = self.model(ids, lengths).chunk(2)
        loss = -nn.functional.logsigmoid(chosen - rejected).mean()
        reg = self.center * (chosen + rejected).pow(2).mean()
        return loss, reg, (chosen > rejected).float()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses, accs = [], []
        for batch in self.val_dl:
            loss, _, acc = self.compute_loss(batch)
            losses.append(loss)
            accs.append(acc)
        self.model.train()
        return torch.stack(losses).mean().item(), torch.cat(accs).mean().item()

    def fit(self):
        step = 0
        for epoch in range(self.epochs):
            for batch in self.train_dl:
                loss, reg, acc = self.compute_loss(batch)
                self.opt.zero_grad(set_to_none=True)
                (loss + reg).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.sched.step()
                if step % 20 == 0:
                    print(f"step {step:4d} loss {loss.item():.4f} acc {acc.mean().item():.3f}")
                step += 1
            vl, va = self.evaluate()
            print(f"epoch {epoch} train loss {loss.item():.4f} val loss {vl:.4f} val acc {va:.3f}")


if __name__ == "__main__":
    torch.manual_seed(3)
    MAX_LEN = 36
    train = PreferenceDataset(1600, seed=1, max_len=MAX_LEN)
    val = PreferenceDataset(384, seed=2, max_len=MAX_LEN)
    RewardTrainer(RewardModel(len(VOCAB), max_len=MAX_LEN), train, val).fit()
