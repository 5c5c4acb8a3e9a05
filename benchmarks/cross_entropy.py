"""Cross-entropy from logits, forward and gradient: our kernel and its peers, checked and timed in one run.

    python benchmarks/cross_entropy.py                                  CPU, small sizes
    python benchmarks/cross_entropy.py --device cuda --peers FOLDER     the table of docs/precision.md
    python benchmarks/cross_entropy.py --device cuda --sweep            ways to cut a long row

FOLDER holds unpacked wheels of the peers (liger_kernel) and single files flash_attn_loss.py and
unsloth_loss.py with their Triton losses; what is missing is left out.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from traindoctor import cross_entropy

Loss = Callable[[Tensor, Tensor], Tensor]
SIZES = {"cuda": (1000, 1003, 2004, 32000, 50257, 128256, 262144), "cpu": (50, 2004, 50257)}
ROWS = {"cuda": 8192, "cpu": 256}
DTYPES = {"cuda": (torch.bfloat16, torch.float32), "cpu": (torch.float32,)}
# Up to this many classes the host's share of the time is measured too.
SMALL = 4096


def peers(folder: str | None) -> dict[str, Loss]:
    """Name -> loss. Our own last."""
    found: dict[str, Loss] = {"torch": F.cross_entropy}
    if torch.cuda.is_available():
        compiled = torch.compile(lambda x, t: F.cross_entropy(x.float(), t))
        found["torch.compile"] = compiled
    if folder:
        sys.path.insert(0, folder)
        for name, module, call in (
            ("Liger", "liger_kernel.transformers.functional", _liger),
            ("flash-attn", "flash_attn_loss", _flash_attn),
            ("Unsloth", "unsloth_loss", _unsloth),
        ):
            try:
                found[name] = call(importlib.import_module(module))
            except ImportError as error:
                print(f"{name} left out: {error}")
    found["traindoctor"] = cross_entropy
    return found


def _liger(module: object) -> Loss:
    # it writes the gradient over the logits: the copy keeps its own work the same in each round
    return lambda x, t: module.liger_cross_entropy(x, t)  # type: ignore[attr-defined]


def _flash_attn(module: object) -> Loss:
    def loss(x: Tensor, t: Tensor) -> Tensor:
        losses, _ = module.cross_entropy_loss(x, t)  # type: ignore[attr-defined]
        return losses.sum() / (t != -100).sum()

    return loss


def _unsloth(module: object) -> Loss:
    return lambda x, t: module.fast_cross_entropy_loss(x.unsqueeze(0), t.unsqueeze(0))  # type: ignore[attr-defined]


def make(N: int, V: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    logits = torch.randn(N, V, device=device, dtype=torch.float32).to(dtype)
    targets = torch.randint(V, (N,), device=device)
    targets[torch.rand(N, device=device) < 0.1] = -100
    return logits, targets


def gradient(loss: Loss, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    # a non-leaf: some peers write over their input
    leaf = logits.detach().clone().requires_grad_()
    value = loss(leaf * 1 if loss.__name__ == "<lambda>" else leaf, targets)
    value.backward()
    return value.detach(), leaf.grad


def device_time(step: Callable[[], None], device: str) -> float:
    """Milliseconds, median."""
    if device == "cuda":
        from triton.testing import do_bench

        return float(do_bench(step, warmup=15, rep=60, return_mode="median"))
    step()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def host_times(steps: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Milliseconds a step takes with everything, the host included: medians of rounds in turn.

    The host's share moves by a half from one second to the next, so all run in the same seconds.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(20):
            step()
    for _ in range(41):
        for name, step in steps.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(20):
                step()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / 20 * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def graph_time(step: Callable[[], None]) -> float:
    """Milliseconds on the device alone, by a CUDA graph; NaN where it cannot be captured."""
    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return device_time(graph.replay, "cuda")
    except (RuntimeError, torch.AcceleratorError):
        torch.cuda.synchronize()
        return float("nan")


def copy_rate() -> float:
    """Bytes per second of a large copy."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / (device_time(lambda: target.copy_(source), "cuda") / 1e3)


def compare(device: str, folder: str | None) -> list[dict[str, object]]:
    """A row per dtype, size and implementation."""
    losses = peers(folder)
    rate = copy_rate() if device == "cuda" else float("nan")
    if device == "cuda":
        print(
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {rate / 1e12:.2f} TB/s"
        )
    rows: list[dict[str, object]] = []
    N = ROWS[device]
    for dtype in DTYPES[device]:
        for V in SIZES[device]:
            logits, targets = make(N, V, dtype, device)
            floor = 2 * logits.numel() * logits.element_size() / rate * 1e3
            few = slice(0, min(N, max(64, (1 << 26) // V)))
            exact = gradient(_in_float64, logits[few].double(), targets[few])
            steps: dict[str, Callable[[], None]] = {}
            # Else one compiled for any shape stands in for the one compiled for this.
            torch._dynamo.reset()
            for name, loss in losses.items():
                leaf = logits.detach().requires_grad_()

                def step(loss: Loss = loss, leaf: Tensor = leaf, targets: Tensor = targets) -> None:
                    leaf.grad = None
                    loss(leaf, targets).backward()

                try:
                    value, grad = gradient(loss, logits[few], targets[few])
                    row: dict[str, object] = {
                        "dtype": str(dtype)[6:],
                        "V": V,
                        "impl": name,
                        "loss_error": float(((value.double() - exact[0]) / exact[0]).abs()),
                        "gradient_error": float(
                            (grad.double() - exact[1]).norm() / exact[1].norm()
                        ),
                        "floor_ms": floor,
                    }
                    if name == "Liger":
                        # in place: give it its own copy, or it times its own earlier output
                        scratch = logits.detach().clone().requires_grad_()

                        def step(
                            loss: Loss = loss, x: Tensor = scratch, t: Tensor = targets
                        ) -> None:
                            loss(x, t).backward()
                            x.grad = None

                    row["ms"] = device_time(step, device)
                    if device == "cuda" and V <= SMALL:
                        steps[name] = step
                        if name != "Liger":
                            row["graph_ms"] = graph_time(step)
                except Exception as error:
                    print(f"{name} {dtype} {V}: {error!r}"[:200])
                    continue
                rows.append(row)
                print(
                    f"{row['dtype']:>9} V={V:<7} {name:<14} {row['ms']:8.3f} ms"
                    f"  {floor / row['ms']:.2f} of roofline"  # type: ignore[operator]
                    f"  loss {row['loss_error']:.1e}  gradient {row['gradient_error']:.1e}"
                    + (f"  graph {row['graph_ms']:.4f}" if "graph_ms" in row else ""),
                    flush=True,
                )
            for name, ms in host_times(steps).items():
                print(f"          V={V:<7} {name:<14} {ms:8.3f} ms with the host", flush=True)
                next(r for r in rows[::-1] if r["impl"] == name)["host_ms"] = ms
            del logits, leaf, exact, steps
    return rows


def _in_float64(x: Tensor, t: Tensor) -> Tensor:
    return cross_entropy(x, t, impl="torch")


def stress(device: str, folder: str | None) -> None:
    """The inputs on which kernels fail: errors of loss and gradient."""
    V, N = (50257, 64) if device == "cuda" else (5000, 16)
    x, t = make(N, V, torch.float32, device)
    t = t.clamp_min(0)
    column = t.unsqueeze(1)
    cases = {}
    for nats in (10, 17, 25, 40):
        sure = x.scatter(1, column, -1e30)
        lead = sure.double().logsumexp(1, keepdim=True) + nats
        cases[f"target {nats} nats ahead"] = (sure.scatter(1, column, lead.float()), t)
    cases["all logits + 1e4"] = (x + 1e4, t)
    masked = torch.randn(N, 128256 if device == "cuda" else V, device=device)
    half = masked.shape[1] // 2
    masked[:, :half] = -torch.inf
    cases["first half -inf"] = (masked, t % half + half)
    cases["1M rows, V=64, bf16"] = make(
        1_000_000 if device == "cuda" else 20_000, 64, torch.bfloat16, device
    )
    for name, (logits, targets) in cases.items():
        exact = gradient(_in_float64, logits.double(), targets)
        line = []
        for peer, loss in peers(folder).items():
            try:
                value, grad = gradient(loss, logits, targets)
                error = float(((value.double() - exact[0]) / exact[0]).abs())
                line.append(
                    f"{peer} {error:.0e}; {float((grad.double() - exact[1]).norm() / exact[1].norm()):.0e}"
                )
            except Exception as failure:
                line.append(f"{peer} {type(failure).__name__}")
        print(f"{name:<24}", " | ".join(line), flush=True)


def sweep() -> None:
    """Every sensible plan for long rows."""
    from traindoctor.kernels.cross_entropy import layout
    from traindoctor.kernels.cross_entropy import triton as kernel

    N = ROWS["cuda"]
    for dtype in DTYPES["cuda"]:
        for V in (v for v in SIZES["cuda"] if v > SMALL):
            logits, targets = make(N, V, dtype, "cuda")
            found = []
            for size in (4096, 8192, 16384, 32768):
                parts = -(-V // size)
                if parts > layout.MOST_PARTS:
                    continue
                block = layout.power_of_2(-(-V // parts))
                for num_warps, row_to_row in itertools.product((4, 8, 16), (False, True)):
                    if block // num_warps > 2048 or block // num_warps < 512:
                        continue
                    if row_to_row and dtype != torch.bfloat16:
                        continue
                    cut = layout.Plan(
                        parts=parts,
                        block=block,
                        num_warps=num_warps,
                        resident=layout.RESIDENT_WARPS // num_warps if row_to_row else 0,
                    )
                    loss = kernel.LossKernel(
                        logits,
                        targets,
                        ignore_index=-100,
                        reduction="mean",
                        label_smoothing=0.0,
                        z_loss=0.0,
                        early=True,
                        cut=cut,
                    )

                    def step(
                        loss: kernel.LossKernel = loss, x: Tensor = logits, t: Tensor = targets
                    ) -> None:
                        loss.forward(x, t)

                    found.append((device_time(step, "cuda"), cut))
            for ms, cut in sorted(found, key=lambda pair: pair[0])[:4]:
                print(f"{str(dtype)[6:]:>9} V={V:<7} {ms:.3f} ms  {cut}", flush=True)
            del logits, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peers", metavar="FOLDER")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.sweep:
        sweep()
        return
    rows = compare(options.device, options.peers)
    stress(options.device, options.peers)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
