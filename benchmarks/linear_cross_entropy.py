"""Linear layer and cross-entropy: time, memory and error of the fused loss and its peers in one run.

python benchmarks/linear_cross_entropy.py                               CPU: N=4096, D=384, V=50257
python benchmarks/linear_cross_entropy.py --device cuda --peers FOLDER  H200 table
python benchmarks/linear_cross_entropy.py --device cuda --sweep         shapes of the product's tiles
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from traindoctor import linear_cross_entropy

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
SHAPES = ((768, 50257), (768, 50304), (768, 128256), (4096, 50257), (4096, 128256))
ROWS = 8192
CPU_SHAPE = (4096, 384, 50257)


def eager(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """What everybody writes."""
    return F.cross_entropy((hidden @ weight.T).float(), targets)


def peers(folder: str | None) -> dict[str, Loss]:
    """Name -> loss. Our own last."""
    found: dict[str, Loss] = {"torch": eager, "torch.compile": torch.compile(eager)}
    if folder:
        sys.path.insert(0, folder)
        try:
            liger = importlib.import_module("liger_kernel.transformers.functional")
            found["Liger fp32 accum"] = lambda h, w, t: liger.liger_fused_linear_cross_entropy(
                h, w, t, accum_dtype=torch.float32, chunk_mem_const=8
            )
        except ImportError as error:
            print(f"Liger left out: {error}")
        try:
            cce = importlib.import_module("cut_cross_entropy")
            found["cut-cross-entropy"] = cce.linear_cross_entropy
        except ImportError as error:
            print(f"cut-cross-entropy left out: {error}")
    found["traindoctor"] = linear_cross_entropy
    return found


def make(N: int, D: int, V: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states that lean towards their target's row, as in a trained model."""
    weight = (torch.randn(V, D, device=device) / D**0.5).to(dtype)
    targets = torch.randint(V, (N,), device=device)
    hidden = (torch.randn(N, D, device=device) + 6 * weight[targets].float()).to(dtype)
    targets[torch.rand(N, device=device) < 0.1] = -100
    return hidden, weight, targets


def gradients(loss: Loss, hidden: Tensor, weight: Tensor, targets: Tensor) -> list[Tensor]:
    leaves = [hidden.detach().requires_grad_(), weight.detach().requires_grad_()]
    value = loss(*leaves, targets)
    value.backward()
    return [value.detach(), leaves[0].grad, leaves[1].grad]


def errors(found: list[Tensor], exact: list[Tensor]) -> dict[str, float]:
    def relative(a: Tensor, b: Tensor) -> float:
        return float((a.double() - b).norm() / b.norm())

    # in pieces: the whole difference in float64 would be 4 GB
    worst = 0.0
    for i in range(0, len(exact[2]), 8192):
        part = slice(i, i + 8192)
        rows = (found[2][part].double() - exact[2][part]).norm(dim=1) / exact[2][part].norm(dim=1)
        worst = max(worst, float(rows.max()))
    return {
        "loss_error": relative(found[0], exact[0]),
        "hidden_error": relative(found[1], exact[1]),
        "weight_error": relative(found[2], exact[2]),
        "worst_weight_row": worst,
    }


def on_gpu(folder: str | None) -> list[dict[str, object]]:
    from triton.testing import do_bench

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows: list[dict[str, object]] = []
    for D, V in SHAPES:
        hidden, weight, targets = make(ROWS, D, V, "cuda", torch.bfloat16)
        exact = gradients(
            lambda h, w, t: linear_cross_entropy(h, w, t, impl="torch"),
            hidden.double(),
            weight.double(),
            targets,
        )
        # Else one compiled for any shape stands in for the one compiled for this.
        torch._dynamo.reset()
        for name, loss in peers(folder).items():
            leaves = [hidden.detach().requires_grad_(), weight.detach().requires_grad_()]

            def step(
                loss: Loss = loss, leaves: list[Tensor] = leaves, targets: Tensor = targets
            ) -> None:
                for leaf in leaves:
                    leaf.grad = None
                loss(*leaves, targets).backward()

            try:
                row: dict[str, object] = {"D": D, "V": V, "impl": name}
                row |= errors(gradients(loss, hidden, weight, targets), exact)
                step()
                leaves[0].grad = leaves[1].grad = None
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                step()
                torch.cuda.synchronize()
                given = 2 * (hidden.numel() + weight.numel())
                row["extra_GB"] = (torch.cuda.max_memory_allocated() - before - given) / 1e9
                row["ms"] = float(do_bench(step, warmup=20, rep=80, return_mode="median"))
            except Exception as error:
                print(f"{name} {D}x{V}: {error!r}"[:300])
                continue
            rows.append(row)
            print(
                f"{D:>5}x{V:<7} {name:<18} {row['ms']:8.2f} ms  {row['extra_GB']:.3f} GB"
                f"  loss {row['loss_error']:.0e}  dH {row['hidden_error']:.1e}"
                f"  dW {row['weight_error']:.1e}, worst row {row['worst_weight_row']:.1e}",
                flush=True,
            )
        del exact, hidden, weight
    return rows


def sweep() -> None:
    """Shapes of the tiles of `exp_logits`."""
    from triton.testing import do_bench

    import traindoctor.kernels.linear_cross_entropy.exponentials as fused

    for D, V in ((768, 50257), (4096, 128256)):
        hidden, weight, targets = make(1024, D, V, "cuda", torch.bfloat16)
        numbers = fused.references(hidden, weight, None, targets, -100)
        columns = -(-V // 64) * 64
        E = torch.empty(1024, columns, device="cuda", dtype=torch.bfloat16)
        weights = torch.full((1024,), 1 / 1024, device="cuda", dtype=torch.float64)
        described = fused.Described()
        for rows, classes, width, warps, stages, persistent in (
            (128, 256, 64, 8, 3, True),
            (128, 256, 64, 8, 3, False),
            (128, 256, 32, 8, 4, True),
            (128, 128, 32, 4, 3, False),
            (128, 128, 64, 4, 2, False),
            (128, 128, 64, 8, 2, False),
            (64, 256, 64, 4, 2, False),
            (64, 256, 64, 4, 3, True),
        ):
            tiles = fused.Tiles(
                rows=rows,
                classes=classes,
                width=width,
                num_warps=warps,
                num_stages=stages,
                persistent=persistent,
            )

            def step(
                tiles: fused.Tiles = tiles,
                h: Tensor = hidden,
                w: Tensor = weight,
                numbers: fused.RowNumbers = numbers,
                described: fused.Described = described,
                E: Tensor = E,
                weights: Tensor = weights,
            ) -> None:
                fused.exponentials(
                    h,
                    w,
                    None,
                    numbers,
                    0,
                    weights,
                    E,
                    ignore_index=-100,
                    z_loss=0.0,
                    tiles=tiles,
                    described=described,
                )

            try:
                ms = float(do_bench(step, warmup=10, rep=50, return_mode="median"))
                print(
                    f"{D}x{V} {ms:.3f} ms {2e-9 * 1024 * D * V / ms:.0f} TFLOP/s {tiles}",
                    flush=True,
                )
            except Exception as error:
                print(f"{tiles}: {error!r}"[:160], flush=True)


def on_cpu_once(name: str) -> None:
    """One implementation in a process of its own, so that its peak memory is its own."""
    N, D, V = CPU_SHAPE
    torch.manual_seed(0)
    hidden, weight, targets = make(N, D, V, "cpu", torch.float32)
    loss = F_eager if name == "eager" else linear_cross_entropy
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times, cpu_times = [], []
    for _ in range(2):
        start, cpu_start = time.perf_counter(), time.process_time()
        gradients(loss, hidden, weight, targets)
        times.append(time.perf_counter() - start)
        # what a busy machine does not change
        cpu_times.append(time.process_time() - cpu_start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
    print(
        json.dumps(
            {
                "impl": name,
                "seconds": min(times),
                "cpu_seconds": min(cpu_times),
                "extra_MB": peak / 1024,
            }
        )
    )


def F_eager(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peers", metavar="FOLDER")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--once", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.once:
        on_cpu_once(options.once)
    elif options.sweep:
        sweep()
    elif options.device == "cuda":
        rows = on_gpu(options.peers)
        if options.json:
            Path(options.json).write_text(json.dumps(rows, indent=1))
    else:
        for name in ("eager", "traindoctor"):
            subprocess.run([sys.executable, __file__, "--once", name], check=True)


if __name__ == "__main__":
    main()
