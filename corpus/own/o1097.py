import random
import re

import numpy as np
import torch
import torch.nn as nn

SEED = 7
ELEMENTS = ["C", "N", "O", "F", "S", "Cl"]
VALENCE = {"C": 4, "N": 3, "O": 2, "F": 1, "S": 2, "Cl": 1}
CONTRIB = {"C": 0.35, "N": -0.9, "O": -0.7, "F": 0.3, "S": 0.45, "Cl": 0.75}
MAX_ATOMS = 14
TOKEN = re.compile(r"Cl|[CNOFS]|=|\(|\)")


def random_smiles(rng):
    out, depth = ["C"], 0
    for _ in range(rng.randint(4, 11)):
        if rng.random() < 0.2 and depth == 0:
            out.append("(")
            depth += 1
        if rng.random() < 0.15:
            out.append("=")
        out.append(rng.choices(ELEMENTS[:3] + ["S"], [6, 2, 2, 1])[0])
        if depth and rng.random() < 0.5:
            out.append(")")
            depth -= 1
    if depth:
        out.append(")")
    out.append(rng.choice(["F", "Cl", "C", "N", "O"]))
    return "".join(out)


def parse(smiles):
    atoms, bonds, stack, prev, order = [], [], [], None, 1
    for tok in TOKEN.findall(smiles):
        if tok == "(":
            stack.append(prev)
        elif tok == ")":
            prev = stack.pop()
        elif tok == "=":
            order = 2
        else:
            atoms.append(tok)
            if prev is not None:
                bonds.append((prev, len(atoms) - 1, order))
            prev, order = len(atoms) - 1, 1
    used = [0] * len(atoms)
    for i, j, o in bonds:
        used[i] += o
        used[j] += o
    if len(atoms) > MAX_ATOMS or any(u > VALENCE[a] for u, a in zip(used, atoms)):
        return None
    return atoms, bonds


def assay(smiles, rng):
    toks = TOKEN.findall(smiles)
    score = sum(CONTRIB.get(t, 0.0) for t in toks) - 0.5 * toks.count("=")
    score += 0.6 * smiles.count("C=O") - 0.4 * smiles.count("NC")
    return score + rng.gauss(0, 0.1)


def featurize(mol):
    atoms, bonds = mol
    x = np.zeros((MAX_ATOMS, len(ELEMENTS) + 1), dtype=np.float32)
    adj = np.zeros((2, MAX_ATOMS, MAX_ATOMS), dtype=np.float32)
    for i, a in enumerate(atoms):
        x[i, ELEMENTS.index(a)] = 1
        x[i, -1] = 1
    for i, j, o in bonds:
        adj[o - 1, i, j] = adj[o - 1, j, i] = 1
    return x, adj


def load_table(n, seed):
    rng = random.Random(seed)
    smiles = []
    for _ in range(n):
        s = random_smiles(rng)
        while parse(s) is None and rng.random() < 0.95:
            s = random_smiles(rng)
        smiles.append(s)
    return smiles, [assay(s, rng) for s in smiles]


def build_dataset(n, seed):
    smiles, values = load_table(n, seed)
    mols = [parse(s) for s in smiles]
    feats = [featurize(m) for m in mols if m is not None]
    x = torch.from_numpy(np.stack([f[0] for f in feats]))
    adj = torch.from_numpy(np.stack([f[1] for f in feats]))
    y = torch.tensor(values[: len(feats)], dtype=torch.float32)
    print(f"{len(feats)} of {n} molecules kept")
    return x, adj, y


class MessagePassing(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w_single = nn.Linear(dim, dim)
        self.w_double = nn.Linear(dim, dim)
        self.update = nn.GRUCell(dim, dim)

    def forward(self, h, adj):
        m = adj[:, 0] @ self.w_single(h) + adj[:, 1] @ self.w_double(h)
        return self.update(m.flatten(0, 1), h.flatten(0, 1)).view_as(h)


class MPNN(nn.Module):
    def __init__(self, dim=40, rounds=2):
        super().__init__()
        self.embed = nn.Linear(len(ELEMENTS) + 1, dim)
        self.rounds = nn.ModuleList(MessagePassing(dim) for _ in range(rounds))
        self.gate = nn.Linear(2 * dim, 1)
        self.value = nn.Linear(2 * dim, dim)
        self.out = nn.Sequential(nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, x, adj):
        mask = x[..., -1:]
        h0 = self.embed(x) * mask
        h = h0
        for r in self.rounds:
            h = r(h, adj)
        z = torch.cat([h, h0], -1)
        pooled = (torch.sigmoid(self.gate(z)) * self.value(z) * mask).sum(1) / 4
        return self.out(pooled).squeeze(-1)


def main():
    torch.manual_seed(SEED)
    x, adj, y = build_dataset(4500, 1)
    vx, vadj, vy = build_dataset(600, 2)
    mean, std = y.mean(), y.std()
    y, vy = (y - mean) / std, (vy - mean) / std
    model = MPNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batch, epochs = 64, 4
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    step = 0
    for epoch in range(epochs):
        model.train()
        for idx in torch.randperm(len(x)).split(batch):
            loss = nn.functional.mse_loss(model(x[idx], adj[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} mse {loss.item():.4f}", flush=True)
            step += 1
        scheduler.step()
        model.eval()
        with torch.no_grad():
            pred = model(vx, vadj)
            rmse = (pred - vy).pow(2).mean().sqrt().item()
        print(f"epoch {epoch} validation rmse {rmse:.4f}", flush=True)


if __name__ == "__main__":
    main()
