"""Greedy generation beside Hugging Face's generate(), with the same weights, turn by turn.

    python benchmarks/generation.py                   6 layers x 384 on the CPU, one text at a time
    python benchmarks/generation.py --device cuda     GPT-2 124M in bf16, 1 and 32 texts, against HF's
                                                      static cache, compiled

A ratio is the median over the rounds of (their time / our time). The tokens must be the same: in float32 all
of them, in bf16 the share that agrees is printed (random weights have near ties that rounding decides).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from traindoctor.lm.config import ModelConfig
from traindoctor.lm.export_hf import gpt2_config, gpt2_tensors
from traindoctor.lm.files import write_json
from traindoctor.lm.generate import EagerDecoder, GraphDecoder, Sampling, generate
from traindoctor.lm.model import Transformer

# Time of this process alone instead of the wall clock's.
CPU_TIME = False
SHAPES = {
    "char": ({"layers": 6, "heads": 6, "width": 384, "block": 512}, 359),
    "gpt2": ({"layers": 12, "heads": 12, "width": 768, "block": 1024}, 50257),
    "tiny": ({"layers": 2, "heads": 2, "width": 64, "block": 128}, 359),
}
GREEDY = Sampling(temperature=0)


def our_model(shape: str) -> Transformer:
    settings, vocab = SHAPES[shape]
    torch.manual_seed(0)
    config = ModelConfig(**settings, norm="layer", positions="learned", mlp="gelu", bias=True)
    return Transformer(config, vocab).eval()


def their_model(model: Transformer, dtype: torch.dtype) -> torch.nn.Module:
    """The same weights as transformers loads them."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        save_file(
            gpt2_tensors(model), Path(folder) / "model.safetensors", metadata={"format": "pt"}
        )
        write_json(Path(folder) / "config.json", gpt2_config(model))
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def their_writer(
    model: torch.nn.Module, prompt: Tensor, count: int, *, static: bool
) -> Callable[[], Tensor]:
    options = {"cache_implementation": "static"} if static else {}

    def write() -> Tensor:
        tokens = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            **options,
        )
        return tokens[:, prompt.shape[1] :]

    return write


def our_writer(
    model: Transformer, prompt: Tensor, count: int, *, compiled: bool = False
) -> Callable[[], Tensor]:
    """The decoder (cache and captured graph) is made once, as theirs is compiled once."""
    if prompt.device.type == "cuda":
        decoder: EagerDecoder | GraphDecoder = GraphDecoder(
            model, len(prompt), model.config.block, compiled=compiled
        )
    else:
        decoder = EagerDecoder(model, len(prompt), model.config.block)
    return lambda: generate(model, prompt, max_tokens=count, sampling=GREEDY, decoder=decoder)


def timed(write: Callable[[], Tensor], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    clock = time.process_time if CPU_TIME else time.perf_counter
    begun = clock()
    write()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - begun


def measure(arguments: argparse.Namespace, batch: int) -> list[dict[str, object]]:
    cuda = arguments.device == "cuda"
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    model = our_model(arguments.shape)
    theirs = their_model(model, dtype).to(arguments.device)
    model = model.to(arguments.device, dtype)
    prompt = torch.randint(model.vocab_size, (batch, arguments.prompt), device=arguments.device)
    count = arguments.tokens
    writers = {"traindoctor": our_writer(model, prompt, count)}
    if cuda:
        writers["traindoctor, compiled"] = our_writer(model, prompt, count, compiled=True)
    writers["HF generate"] = their_writer(theirs, prompt, count, static=False)
    if cuda:
        writers["HF static, compiled"] = their_writer(theirs, prompt, count, static=True)
    texts = {name: write() for name, write in writers.items()}  # also compiles, captures, warms up
    for write in writers.values():
        write()
    seconds: dict[str, list[float]] = {name: [] for name in writers}
    order = list(writers)
    for turn in range(arguments.rounds):
        for name in order if turn % 2 == 0 else order[::-1]:
            seconds[name].append(timed(writers[name], arguments.device))
    rows = []
    for name, times in seconds.items():
        ratios = [t / o for t, o in zip(times, seconds["traindoctor"])]
        same = (texts[name] == texts["traindoctor"]).float().mean().item()
        rows.append(
            {
                "writer": name,
                "tokens/s": round(batch * count / statistics.median(times)),
                "ms per token": round(1e3 * statistics.median(times) / count, 3),
                "time / ours": round(statistics.median(ratios), 3),
                "same tokens": f"{same:.1%}",
            }
        )
        if dtype == torch.float32 and not cuda:
            assert same == 1, f"{name} writes other tokens"
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--precision", choices=["float32", "bf16"])
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="for a machine that others use too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    global CPU_TIME
    CPU_TIME = arguments.cpu_time
    cuda = arguments.device == "cuda"
    arguments.shape = arguments.shape or ("gpt2" if cuda else "char")
    arguments.precision = arguments.precision or ("bf16" if cuda else "float32")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    # transformers warns of settings that it reads from its own defaults.
    warnings.filterwarnings("ignore")
    machine = torch.cuda.get_device_name() if cuda else f"{platform.machine()} CPU"
    print(f"torch {torch.__version__}, {machine}, {torch.get_num_threads()} threads")
    results = {}
    for batch in arguments.batch or ([1, 32] if cuda else [1]):
        print(
            f"\n{arguments.shape}, {arguments.precision}, batch {batch}, {arguments.tokens} tokens"
        )
        results[batch] = rows = measure(arguments, batch)
        print("  ".join(f"{name:>22}" for name in rows[0]))
        for row in rows:
            print("  ".join(f"{value!s:>22}" for value in row.values()))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
