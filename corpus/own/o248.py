import inspect
import argparse, ast, heapq

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
import logging, warnings

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
SOURCE = "".join(inspect.getsource(m) for m in (argparse, ast, heapq))
CHARS = sorted(set(SOURCE))


class Windows(torch.utils.data.Dataset):
    def __init__(self, ctx):
        table = {c: i for i, c in enumerate(CHARS)}
        self.ids = torch.tensor([table[c] for c in SOURCE])
        self.ctx = ctx

    def __len__(self):
        return len(self.ids) - self.ctx - 1

    def __getitem__(self, i):
        return self.ids[i:i + self.ctx + 1]


class Decoder(L.LightningModule):
    def __init__(self, d=64, heads=4, depth=3):
        super().__init__()
        self.heads = heads
        self.recent = []
        self.emb = nn.Embedding(len(CHARS), d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d, bias=False) for _ in range(depth))
        self.proj = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(depth))
        self.ffn = nn.ModuleList(nn.Sequential(nn.Linear(d, 3 * d), nn.ReLU(), nn.Linear(3 * d, d)) for _ in range(depth))
        self.norm = nn.LayerNorm(d, elementwise_affine=False)
        self.out = nn.Linear(d, len(CHARS), bias=False)
        nn.init.zeros_(self.out.weight)
        for p in self.proj:
            nn.init.zeros_(p.weight)
        for f in self.ffn:
            nn.init.zeros_(f[2].weight)

    def forward(self, ids):
        x = self.emb(ids)
        b, t, d = x.shape
        for qkv, proj, ffn in zip(self.qkv, self.proj, self.ffn):
            q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in qkv(self.norm(x)).chunk(3, -1))
            a = F.scaled_dot_product_attention(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, is_causal=True, scale=8.0)
            x = x + proj(a.transpose(1, 2).reshape(b, t, d))
            x = x + ffn(self.norm(x))
        return 20 * torch.tanh(self.out(self.norm(x)) / 20)

    def training_step(self, rows, i):
        loss = F.cross_entropy(self(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        self.recent = (self.recent + [loss.item()])[-20:]
        if i % 20 == 0 or i == 199:
            print(f"step {i} loss {sum(self.recent) / len(self.recent):.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2.5e-3, betas=(0.8, 0.95), eps=1e-10)


L.seed_everything(9, verbose=False)
loader = torch.utils.data.DataLoader(Windows(48), batch_size=10, shuffle=True)
trainer = L.Trainer(max_steps=200, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Decoder(), loader)
