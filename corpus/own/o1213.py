import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from pydoc_data.topics import topics
import random
import re

ROW = 64
WIDTH, NHEAD, NLAYER = (64, 4, 2)


class WordPiece:
    def __init__(self, text, size=400):
        count = {}
        for w in self.split(text):
            count[w] = count.get(w, 0) + 1
        letters = sorted(set(text.lower()))
        frequent = sorted(count, key=lambda w: (-count[w], w))[:size]
        self.items = ["<eod>"] + letters + [w for w in frequent if len(w) > 1]
        self.index = {w: i for i, w in enumerate(self.items)}

    @staticmethod
    def split(text):
        return re.findall("[a-z]+|[^a-z]", text.lower())

    def encode(self, text):
        ids = []
        for w in self.split(text):
            ids += (
                [self.index[w]]
                if w in self.index
                else [self.index[c] for c in w if c in self.index]
            )
        return ids


def load_documents():
    docs = []
    for k in sorted(topics):
        for par in topics[k].split("\n\n"):
            par = " ".join(par.split())
            if 40 < len(par) < 400:
                docs.append(par)
    random.Random(0).shuffle(docs)
    return docs


class PackedRows(Dataset):
    def __init__(self, docs, tok):
        stream, owner, pos = ([], [], [])
        for n, d in enumerate(docs):
            ids = [0] + tok.encode(d)
            stream += ids
            owner += [n] * len(ids)
            pos += list(range(len(ids)))
        rows = (len(stream) - 1) // ROW
        cut = rows * ROW
        s = torch.tensor(stream)
        self.x, self.y = (s[:cut].view(rows, ROW), s[1 : cut + 1].view(rows, ROW))
        self.owner = torch.tensor(owner[:cut]).view(rows, ROW)
        self.pos = torch.tensor(pos[:cut]).view(rows, ROW).clamp(max=ROW - 1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        y = self.y[i].clone()
        y[y == 0] = -100
        return (self.x[i], y, self.owner[i], self.pos[i])


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj_in = nn.Linear(WIDTH, WIDTH * 3, bias=False)
        self.proj_out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, mask=None):
        b, t, _ = x.shape
        q, k, v = (z.reshape(b, t, NHEAD, -1).transpose(1, 2) for z in self.proj_in(x).chunk(3, -1))
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.proj_out(z.transpose(1, 2).reshape(b, t, WIDTH))


class TransformerLM(nn.Module):
    def __init__(self, n_tok):
        super().__init__()
        self.tok_emb = nn.Embedding(n_tok, WIDTH)
        self.pos_emb = nn.Embedding(ROW, WIDTH)
        nn.init.normal_(self.tok_emb.weight, std=0.3)
        nn.init.normal_(self.pos_emb.weight, std=0.1)
        self.att = nn.ModuleList([SelfAttention() for _ in range(NLAYER)])
        self.mlp = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
                for _ in range(NLAYER)
            ]
        )
        self.ln = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2 * NLAYER + 1)])
        self.head = nn.Linear(WIDTH, n_tok)

    def forward(self, x, pos=None, owner=None):
        if pos is None:
            pos = torch.arange(x.shape[1]).expand_as(x)
        mask = None
        if owner is not None:
            mask = (owner[:, :, None] == owner[:, None, :])[:, None]
        h = self.tok_emb(x) + self.pos_emb(pos)
        for i in range(NLAYER):
            h = h + self.att[i](self.ln[2 * i](h), mask)
            h = h + self.mlp[i](self.ln[2 * i + 1](h))
        return self.head(self.ln[-1](h))


@torch.no_grad()
def document_loss(model, docs, tok):
    model.eval()
    total = count = 0
    for d in docs:
        ids = torch.tensor([[0] + tok.encode(d)])[:, :ROW]
        logits = model(ids[:, :-1])
        total += F.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    model.train()
    return total / count


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    docs = load_documents()
    held, docs = (docs[:60], docs[60:900])
    tok = WordPiece(" ".join(docs))
    data = PackedRows(docs, tok)
    loader = DataLoader(data, batch_size=12, shuffle=True, drop_last=True)
    model = TransformerLM(len(tok.items))
    opt = torch.optim.AdamW(model.parameters(), lr=0.003, betas=(0.9, 0.98), weight_decay=0.05)
    epochs, step = (4, 0)
    total = epochs * len(loader)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.003, total_steps=total, pct_start=0.08)
    print(f"{len(docs)} documents, {len(data)} rows, {len(tok.items)} tokens, {total} steps")
    for epoch in range(epochs):
        for x, y, owner, pos in loader:
            loss = F.cross_entropy(
                model(x, pos, owner).flatten(0, 1), y.flatten(), ignore_index=-100
            )
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            if step % 40 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
        print(f"-- epoch {epoch}: last loss {loss.item():.4f}")
    print(f"loss per token on single held-out documents: {document_loss(model, held, tok):.4f}")


if __name__ == "__main__":
    main()
