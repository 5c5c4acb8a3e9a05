"""Small training scripts, run bare and watched by the tests beside this file."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from warm_python import warm_run

# Every script prints its losses and, at the end, a checksum of all weights and of the random state.
END = """
import zlib
crc = 0
for p in model.parameters():
    crc = zlib.crc32(p.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes(), crc)
crc = zlib.crc32(torch.get_rng_state().numpy().tobytes(), crc)
print("end", crc)
"""

HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 20))
def batch():
    x = torch.randint(0, 20, (8, 10))
    return x, (x + 1) % 20
"""

PLAIN = (
    HEAD
    + """
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for step in range(30):
    x, y = batch()
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    if step % 5 == 0:
        print(step, loss.item())
"""
    + END
)

ACCUMULATION = (
    HEAD
    + """
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 25)
for step in range(25):
    for _ in range(3):
        x, y = batch()
        loss = nn.CrossEntropyLoss()(model(x).flatten(0, 1), y.flatten()) / 3
        loss.backward()
    optimizer.step(); schedule.step(); optimizer.zero_grad(set_to_none=False)
    print(step, float(loss.detach()))
"""
    + END
)

AUTOCAST = (
    HEAD
    + """
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(25):
    x, y = batch()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
    optimizer.zero_grad()
    scaler.scale(loss * (float("inf") if step == 3 else 1.0)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item())
"""
    + END
)

# Running statistics and a counter: running the same code twice would show.
COMPILED = (
    HEAD
    + """
import sys
backend, way, rate = sys.argv[1], sys.argv[2], float(sys.argv[3])
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 32), nn.ReLU(), nn.Dropout(rate))
        self.norm, self.head, self.calls = nn.BatchNorm1d(10), nn.Linear(32, 20), []
    def forward(self, x):
        self.calls.append(len(self.calls))
        return self.head(self.norm(self.body(x)))
model = Model()
def loss_of(x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())
if way == "module":
    fast = torch.compile(model, backend=backend)
    loss_of = lambda x, y: F.cross_entropy(fast(x).flatten(0, 1), y.flatten())
elif way == "method":
    model.compile(backend=backend)
elif way == "inside":
    model.body[1].compile(backend=backend)
    model.head = torch.compile(model.head, backend=backend)
else:
    loss_of = torch.compile(loss_of, backend=backend)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for step in range(12):
    x, y = batch()
    loss = loss_of(x, y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(step, loss.item())
from torch._dynamo.utils import counters
print("graphs", counters["stats"]["unique_graphs"], "breaks", len(counters["graph_break"]))
print("calls", len(model.calls), model.norm.num_batches_tracked, model.norm.running_var.sum().item())
"""
    + END
)

CLOSURE = (
    HEAD
    + """
optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3)
for step in range(6):
    x, y = batch()
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        return loss
    print(step, optimizer.step(closure).item())
"""
    + END
)

TWO_OPTIMIZERS = (
    HEAD
    + """
first = torch.optim.AdamW(model[0].parameters(), 1e-2)
second = torch.optim.SGD([p for m in model[1:] for p in m.parameters()], 0.1)
for step in range(12):
    x, y = batch()
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    first.zero_grad(); second.zero_grad()
    loss.backward()
    first.step(); second.step()
    print(step, loss.item())
"""
    + END
)

DATALOADER = (
    HEAD
    + """
from torch.utils.data import DataLoader, TensorDataset
data = torch.randint(0, 20, (64, 10))
loader = DataLoader(TensorDataset(data, (data + 1) % 20), batch_size=8, shuffle=True, num_workers=2)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for epoch in range(2):
    model.train()
    for x, y in loader:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    model.eval()
    with torch.no_grad():
        print(epoch, F.cross_entropy(model(data).flatten(0, 1), ((data + 1) % 20).flatten()).item())
"""
    + END
)

OWN_OPTIMIZER = """
import torch
torch.manual_seed(0)
w = torch.randn(16, 4, requires_grad=True)
for step in range(20):
    x = torch.randn(8, 16)
    loss = torch.nn.functional.mse_loss(x @ w, x[:, :4])
    (g,) = torch.autograd.grad(loss, [w])
    with torch.no_grad():
        w -= 0.1 * g
    print(step, loss.item())
"""

HUGGING_FACE = (
    """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2))
data = [{"input_ids": (x := torch.randint(0, 40, (16,))), "labels": x} for _ in range(64)]
arguments = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=12,
    logging_steps=4, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, seed=1,
)
Trainer(model=model, args=arguments, train_dataset=data).train()
"""
    + END
)

LIGHTNING = (
    """
import sys, warnings
warnings.simplefilter("ignore")
import logging
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import torch, torch.nn.functional as F, lightning as L
from torch.utils.data import DataLoader, TensorDataset
L.seed_everything(0, verbose=False)
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 3))
    def training_step(self, batch, i):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        print(i, loss.item())
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)
x = torch.randn(64, 8); y = torch.randint(0, 3, (64,))
model = Model()
trainer = L.Trainer(max_epochs=2, accelerator="cpu", gradient_clip_val=0.5, logger=False,
                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                    default_root_dir=sys.argv[1])
trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True))
"""
    + END
)

RANKS = """
import os, sys, torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
def work(rank, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    torch.manual_seed(1 + rank)
    for step in range(14):
        x, y = torch.randn(8, 8), torch.randint(0, 4, (8,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    total = sum(p.double().sum().item() for p in model.parameters())
    with open(f"{sys.argv[2]}/rank-{rank}", "w") as file:
        file.write(f"{loss.item()!r} {total!r}")
    dist.destroy_process_group()
if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        mp.spawn(work, (int(sys.argv[3]),), nprocs=2)
    else:
        ranks = [mp.get_context("fork").Process(target=work, args=(r, int(sys.argv[3]))) for r in (0, 1)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
"""


@dataclass
class Ended:
    status: int
    out: str
    err: str


def run_python(
    folder: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    timeout: float = 1200,
    warm: bool = False,
) -> Ended:
    """`python arguments...` in a folder, one thread, whatever the outcome; `warm`: torch is imported already."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    if warm:
        done = warm_run(arguments, folder=folder, env=env, timeout=timeout)
    else:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env,
        )
    return Ended(done.returncode, done.stdout, done.stderr)


def watched(
    folder: Path,
    script: str,
    *arguments: str,
    budget: float = 2,
    timeout: float = 1200,
    warm: bool = False,
) -> Ended:
    """The same script under `traindoctor run`, recorded in `folder/run`; `budget` in percent."""
    ours = ("-m", "traindoctor", "run", "--out", "run", "--after", "0", "--budget", str(budget))
    return run_python(folder, *ours, script, *arguments, timeout=timeout, warm=warm)
