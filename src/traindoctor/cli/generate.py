"""`traindoctor generate`: a trained run writes text."""

import sys
from pathlib import Path

import click

from traindoctor.errors import ConfigError


@click.command(context_settings={"max_content_width": 110})
@click.argument("run", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--prompt", default="", metavar="TEXT", help="Text to continue; - reads it from stdin."
)
@click.option("--max-tokens", default=200, show_default=True, help="Length of what is written.")
@click.option("--temperature", default=0.8, show_default=True, help="0: always the likeliest.")
@click.option("--top-k", default=0, help="Choose among the K likeliest tokens.")
@click.option("--top-p", default=1.0, help="Choose among the likeliest that make up P together.")
@click.option("--min-p", default=0.0, help="Leave out tokens below P times the likeliest.")
@click.option(
    "--repetition-penalty", default=1.0, help="Above 1: what was written becomes less likely."
)
@click.option(
    "--stop", multiple=True, metavar="TEXT", help="End where this text appears (repeatable)."
)
@click.option("--seed", default=1, show_default=True, help="Same seed, same text.")
@click.option("--num-samples", default=1, show_default=True, help="Texts, written together.")
@click.option("--greedy", is_flag=True, help="Short for --temperature 0.")
@click.option(
    "--checkpoint", default="best", show_default=True, metavar="WHICH", help="best, last or a step."
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
@click.option("--stream/--no-stream", default=True, help="Show the text while it is written.")
def command(
    run: Path,
    prompt: str,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    stop: tuple[str, ...],
    seed: int,
    num_samples: int,
    greedy: bool,
    checkpoint: str,
    device: str,
    stream: bool,
) -> int:
    """Generate text with a trained run.

    \b
    traindoctor generate runs/demo --prompt "The function"
    traindoctor generate runs/demo --num-samples 5 --top-p 0.9 --stop "\\n\\n"
    """
    for option, number in (("--max-tokens", max_tokens), ("--num-samples", num_samples)):
        if number < 1:
            raise ConfigError(f"{option} must be at least 1, not {number}")
    import torch

    from traindoctor.lm.checkpoint import load_run
    from traindoctor.lm.distributed import pick_device
    from traindoctor.lm.generate import Sampling, write_text

    sampling = Sampling(
        temperature=0.0 if greedy else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    chosen = pick_device(device)
    model, tokenizer, _ = load_run(run, which=checkpoint, device=chosen)
    model = model.to(torch.bfloat16) if chosen.type == "cuda" else model
    prompt = sys.stdin.read() if prompt == "-" else prompt
    # A shell passes \n as two characters; nobody means those.
    stops = [text.replace("\\n", "\n") for text in stop]

    live = stream and num_samples == 1
    if live:
        show(prompt)
    texts = write_text(
        model,
        tokenizer,
        prompt,
        max_tokens=max_tokens,
        sampling=sampling,
        samples=num_samples,
        stop=stops,
        on_text=show if live else None,
    )
    show_all(prompt, [] if live else texts)
    if live:
        show("\n")
    return 0


def show_all(prompt: str, texts: list[str]) -> None:
    for number, text in enumerate(texts, 1):
        show(f"--- {number} ---\n" if len(texts) > 1 else "")
        show(f"{prompt}{text}\n")


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
