import random
import torch
from torch.utils.data import Dataset, DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

SIZE = 4
CELLS = SIZE * SIZE
BOS = CELLS
JUMPS = [(1, 2), (2, 1), (-1, 2), (-2, 1), (1, -2), (2, -1), (-1, -2), (-2, -1)]


def moves(c):
    r, f = divmod(c, SIZE)
    return [(r + a) * SIZE + f + b for a, b in JUMPS if 0 <= r + a < SIZE and 0 <= f + b < SIZE]


def distance(a, b):
    return abs(a // SIZE - b // SIZE) + abs(a % SIZE - b % SIZE)


def choose(own, other, hunter):
    legal = [m for m in moves(own) if m != other] or moves(own)
    key = (lambda m: (distance(m, other), m)) if hunter else (lambda m: (-distance(m, other), m))
    return min(legal, key=key)


def play(rng, plies):
    pieces = rng.sample(range(CELLS), 2)
    game = [BOS] + pieces
    for ply in range(plies - 2):
        side = ply % 2
        own, other = pieces[side], pieces[1 - side]
        nxt = rng.choice(moves(own)) if rng.random() < 0.3 else choose(own, other, side == 0)
        pieces[side] = nxt
        game.append(nxt)
    return game


class GameDataset(Dataset):
    def __init__(self, n, plies, seed):
        rng = random.Random(seed)
        self.games = [torch.tensor(play(rng, plies)) for _ in range(n)]

    def __len__(self):
        return len(self.games)

    def __getitem__(self, i):
        g = self.games[i]
        return {"input_ids": g[:-1], "labels": g[:-1].clone()}


@torch.no_grad()
def evaluate(model, dataset):
    model.eval()
    best = legal = count = 0
    for i in range(len(dataset)):
        g = dataset.games[i].unsqueeze(0)
        pred = model(input_ids=g[:, :-1]).logits.argmax(-1)[0]
        for t in range(3, g.size(1)):
            own, other = g[0, t - 2].item(), g[0, t - 1].item()
            p = pred[t - 1].item()
            best += p == choose(own, other, (t - 3) % 2 == 0)
            legal += p in moves(own)
            count += 1
    model.train()
    return best / count, legal / count


def main():
    torch.manual_seed(0)
    train, test = GameDataset(3200, 20, 1), GameDataset(80, 20, 2)
    loader = DataLoader(train, batch_size=32, shuffle=True)
    config = GPT2Config(vocab_size=CELLS + 1, n_positions=24, n_embd=64, n_layer=2, n_head=4,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                        bos_token_id=BOS, eos_token_id=BOS)
    model = GPT2LMHeadModel(config)
    epochs = 4
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    total = epochs * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / 40) * max(0.05, 1 - s / total))
    model.train()
    for epoch in range(epochs):
        tot = 0.0
        for batch in loader:
            loss = model(**batch).loss
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            tot += loss.item()
        best, legal = evaluate(model, test)
        print(f"epoch {epoch} loss {tot / len(loader):.4f} policy match {best:.4f} legal {legal:.4f}")
    print(f"final policy match on test games {best:.4f}")


if __name__ == "__main__":
    main()
