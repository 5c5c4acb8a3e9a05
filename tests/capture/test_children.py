"""Child processes: those that do not train run as if we were not there, those that train have records of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts_of_capture import run_python, watched
from test_unchanged import free_port

from traindoctor.record import Record, open_record

# Every Python function that is entered in a worker is looked at, from its first instruction on where it is forked.
WORKERS = """
import os, sys, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
MAIN, OURS, seen = os.getpid(), os.sep + "traindoctor" + os.sep, []
def observe(frame, event, arg):
    if os.getpid() == MAIN and START == "fork":
        return
    file = frame.f_code.co_filename
    if event == "call" and frame.f_code.co_name == "_worker_loop":
        seen.append("worker")
    elif event == "call" and OURS in file and "worker" in seen:
        seen.append("our function " + frame.f_code.co_name)
    elif event == "call" and os.path.join("torch", "cuda") in file and "worker" not in seen:
        seen.append("cuda " + frame.f_code.co_name)
    elif event == "c_call" and OURS in file and getattr(arg, "__module__", "") == "time":
        seen.append("clock in " + frame.f_code.co_name)
class Data(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, i):
        x = F.layer_norm(torch.randn(4, 6), (6,))
        inner = nn.Linear(6, 3)
        loss = F.cross_entropy(inner(x), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        loss.item()
        profile = sys.getprofile()
        sys.setprofile(None)  # this we hear, and leave it at that
        torch.optim.SGD(inner.parameters(), 0.1).step()
        sys.setprofile(profile)
        return x.mean(0), torch.tensor([torch._C._len_torch_function_stack(), len([s for s in seen if s != "worker"])])
def begin(worker):
    torch.manual_seed(worker)
    if START != "fork":
        seen.append("worker")
        sys.setprofile(observe)
START = sys.argv[1]
if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    class Through(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))
    for epoch in range(2):
        # The second time the workers start in the middle of a step that is taped, under a mode of the script's own.
        first = model(torch.ones(1, 6)).mean() * 0
        with Through():
            if START == "fork":
                sys.setprofile(observe)
            loader = iter(DataLoader(Data(), 4, num_workers=2, multiprocessing_context=START, worker_init_fn=begin))
            sys.setprofile(None)
            for x, found in loader:
                loss = model(x).square().mean() + first
                optimizer.zero_grad(); loss.backward(retain_graph=True); optimizer.step()
                print(epoch, loss.item(), found.tolist())
"""

# Everything that people start from a script and that trains nothing.
BYSTANDERS = """
import asyncio, atexit, concurrent.futures, multiprocessing, os, subprocess, sys, warnings
warnings.simplefilter("error")
import torch
warnings.resetwarnings()
atexit.register(print, "exit handler of the script", flush=True)
def job(x):
    return float(torch.nn.functional.mse_loss(torch.ones(2), torch.zeros(2)).item() + x)
def train(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        loss = model(torch.randn(4, 2)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        warnings.warn("the script's own")
    print(loss.item(), flush=True)
def forked(do):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        do()
        raise AssertionError
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
CODE = "import sys; print('sitecustomize' in sys.modules, len(sys.path), sys.flags.no_site)"
async def beside():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CODE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    print(await process.communicate(), process.returncode)
if __name__ == "__main__":
    print(repr(sys.stdin.read()), flush=True)
    train(3)
    forked(lambda: os._exit(int(job(2))))
    forked(lambda: sys.exit(7))
    forked(lambda: sys.exit("words"))
    forked(lambda: 1 / 0)
    forked(lambda: os.execv(sys.executable, [sys.executable, "-c", CODE]))
    for start in ("fork", "spawn"):
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context(start)) as pool:
            print(start, list(pool.map(job, range(2))), flush=True)
    worker = multiprocessing.get_context("fork").Process(target=exit, args=(5,))
    worker.start(); worker.join(); print(worker.exitcode, flush=True)
    asyncio.run(beside())
    done = subprocess.run([sys.executable, "-c", "import torch;" + CODE + "; sys.exit(4)"], capture_output=True, text=True)
    print(done.returncode, done.stdout, done.stderr)
    sys.exit(9)
"""

# Each trains another number of steps: the records are told apart by it.
TRAINERS = """
import multiprocessing, os, subprocess, sys, torch
def train(steps, given=None):
    torch.manual_seed(steps)
    model, optimizer = given or (None, None)
    if given is None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(steps):
        loss = model(torch.randn(4, 4)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(steps, loss.item(), flush=True)
    return model, optimizer
if __name__ == "__main__":
    if sys.argv[1] == "subprocess":
        train(6)
    elif sys.argv[1] == "by hand":
        torch.manual_seed(0)
        weight = torch.zeros(2, requires_grad=True)
        for _ in range(9):
            loss = (weight - 1).square().sum(); loss.backward()
            with torch.no_grad():
                weight -= 0.1 * weight.grad; weight.grad = None
        print(loss.item(), flush=True)
    else:
        # A child is the first to train, and the verdict is on the script's own training all the same.
        for number, start in ((5, "fork"), (7, "spawn")):
            child = multiprocessing.get_context(start).Process(target=train, args=(number,))
            child.start(); child.join(); print(child.exitcode, flush=True)
        given = train(3)
        pid = os.fork()
        if pid == 0:
            train(4, given)
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        for what, more in (("subprocess", {}), ("by hand", {"RANK": "1", "WORLD_SIZE": "2"})):
            done = subprocess.run([sys.executable, __file__, what], env={**os.environ, **more}, capture_output=True, text=True)
            print(done.returncode, done.stdout, done.stderr, flush=True)
"""

LAUNCHED = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
with open(f"{os.environ['TO']}-{dist.get_rank()}", "w") as file:
    file.write(repr(loss.item()))
dist.destroy_process_group()
"""


def both(folder: Path, script: str, *arguments: str) -> tuple[str, str]:
    """Standard error without and with us, where all else is the same."""
    (folder / "script.py").write_text(script)
    bare = run_python(folder, "script.py", *arguments)
    ours = watched(folder, "script.py", *arguments)
    assert ours.out == bare.out
    assert ours.status == bare.status, ours.err
    # On a slow machine lines that tell how far it is come in between.
    lines = [line for line in ours.err.splitlines(True) if not line.startswith("traindoctor: step")]
    return bare.err, "".join(lines)


def records(folder: Path) -> dict[int, Record]:
    """By the number of steps, or of backward passes where there is none."""
    found = [open_record(file) for file in folder.rglob("record-*.sqlite")]
    return {record.fact("run.steps") or record.fact("run.backwards"): record for record in found}


@pytest.mark.parametrize(
    "start",
    ["fork", *(pytest.param(way, marks=pytest.mark.slow) for way in ("spawn", "forkserver"))],
)
def test_nothing_of_ours_runs_in_workers_that_load_data(tmp_path: Path, start: str) -> None:
    _, err = both(tmp_path, WORKERS, start)
    assert "Traceback" not in err
    assert list(records(tmp_path / "run")) == [6]


@pytest.mark.slow  # tests/field has a program of this kind
def test_children_that_do_not_train_cannot_tell_the_difference(tmp_path: Path) -> None:
    bare, ours = both(tmp_path, BYSTANDERS)
    verdict = [
        line
        for line in ours.splitlines()
        if line.startswith("traindoctor: ") and "steps, cost" in line
    ]
    assert len(verdict) == 1
    assert ours.startswith(bare)
    assert list(records(tmp_path / "run")) == [3]


@pytest.mark.slow  # tests/field has a program of this kind
def test_children_that_train_have_records_of_their_own(tmp_path: Path) -> None:
    bare, ours = both(tmp_path, TRAINERS, "all")
    assert ours.startswith(bare)
    assert ours.count("traindoctor: ") == 1
    assert "[3 steps, cost" in ours
    found = records(tmp_path / "run")
    assert sorted(found) == [3, 4, 5, 6, 7, 9]
    for steps in (3, 5, 6, 7):  # armed when they build their optimizer: nothing of step 0 is missed
        assert len(found[steps]["loss.root"]) == steps
    assert (
        len(found[4]["loss.root"]) == 3
    )  # given an optimizer when it was forked: known by its first step
    assert found[9].meta["rank"] == 1
    assert not [
        note.text for record in found.values() for note in record.notes if note.level == "fault"
    ]


@pytest.mark.slow
def test_a_launcher_can_be_the_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LAUNCHED)
    results = []
    for kind, ours in (
        ("bare", ()),
        ("ours", ("traindoctor", "run", "--out", "run", "--after", "0", "-m")),
    ):
        launcher = ("torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}")
        ended = run_python(tmp_path, "-m", *ours, *launcher, "script.py", environment={"TO": kind})
        assert ended.status == 0, ended.err
        results.append([(tmp_path / f"{kind}-{rank}").read_text() for rank in (0, 1)])
    assert results[0] == results[1]
    assert "[5 steps" in ended.err
    ranks = open_record(tmp_path / "run").ranks
    assert [rank.fact("run.steps") for rank in ranks] == [5, 5]
    assert [len(rank["loss.root"]) for rank in ranks] == [5, 5]
