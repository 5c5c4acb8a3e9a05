import re
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)


class Tokenizer:
    def __init__(self):
        pieces = ["<pad>", "<eos>", "Question:", "Answer", ":", ": ", "\n", "\n\n", " ", "add", "max", "min", " and "]
        pieces += [str(i) for i in range(30)]
        self.ids = {p: i for i, p in enumerate(pieces)}
        self.pieces = pieces
        self.rule = re.compile("|".join(re.escape(p) for p in sorted(pieces, key=len, reverse=True)))

    def __len__(self):
        return len(self.pieces)

    def encode(self, text):
        return [self.ids[m] for m in self.rule.findall(text)]

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids)


def make_example():
    a, b = torch.randint(0, 15, (2,)).tolist()
    op = ("add", "max", "min")[int(torch.randint(0, 3, (1,)))]
    r = {"add": a + b, "max": max(a, b), "min": min(a, b)}[op]
    return f"Question: {op} {a} and {b}\n\nAnswer: ", f"{r}<eos>"


class CompletionCollator:
    def __init__(self, tok, template, ignore_index=-100):
        self.tok = tok
        self.template = tok.encode(template)
        self.ignore_index = ignore_index

    def find(self, ids):
        n = len(self.template)
        for i in range(len(ids) - n, -1, -1):
            if ids[i:i + n] == self.template:
                return i + n
        return len(ids)

    def __call__(self, examples):
        rows = [self.tok.encode(p + r) for p, r in examples]
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full((len(rows), width), self.ignore_index)
        for i, row in enumerate(rows):
            ids[i, :len(row)] = torch.tensor(row)
            start = self.find(row)
            labels[i, start:len(row)] = ids[i, start:len(row)]
        return ids, labels


class TinyLM(nn.Module):
    def __init__(self, vocab, d=96, heads=4, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.zeros(32, d))
        self.body = nn.ModuleList([nn.TransformerEncoderLayer(d, heads, 4 * d, 0.0, "gelu", batch_first=True,
                                                              norm_first=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        t = ids.shape[1]
        m = torch.ones(t, t).triu(1).bool()
        x = self.emb(ids) + self.pos[:t]
        for layer in self.body:
            x = layer(x, src_mask=m)
        return self.head(self.norm(x))


def token_mean_loss(logits, labels):
    per_token = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none", ignore_index=-100)
    return per_token.sum() / (labels[:, 1:] != -100).sum().clamp(min=1)


@torch.no_grad()
def exact_match(model, tok, n=200):
    model.eval()
    good = 0
    for _ in range(n):
        prompt, response = make_example()
        ids = tok.encode(prompt)
        for _ in range(2):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        good += tok.decode(ids) == prompt + response
    return good / n


tok = Tokenizer()
collator = CompletionCollator(tok, "\nAnswer:")
model = TinyLM(len(tok))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
for step in range(400):
    ids, labels = collator([make_example() for _ in range(64)])
    loss = token_mean_loss(model(ids), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print({"step": step, "loss": round(loss.item(), 4)})
print({"exact_match": exact_match(model, tok)})
