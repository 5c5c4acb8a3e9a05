"""`traindoctor export`: a run's model for transformers, or its numbers as CSV or Parquet."""

from pathlib import Path

import click


@click.command(context_settings={"max_content_width": 110})
@click.argument("run", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--format", "form", type=click.Choice(["hf", "csv", "parquet"]), required=True)
@click.option("-o", "out", type=click.Path(path_type=Path), required=True, metavar="PATH")
@click.option(
    "--checkpoint",
    default="best",
    show_default=True,
    metavar="WHICH",
    help="best, last or a step (hf only).",
)
@click.option("--overwrite", is_flag=True, help="Replace what is at PATH.")
def command(run: Path, form: str, out: Path, checkpoint: str, overwrite: bool) -> int:
    """Export a run for other tools.

    \b
    hf       for AutoModelForCausalLM and AutoTokenizer (GPT-2 or Llama layout)
    csv      every recorded number: rank, step, series, layer, value; facts: JSON
    parquet  the same, as Parquet
    """
    if form == "hf":
        from traindoctor.lm.export_hf import export_hf

        layout = export_hf(run, out, which=checkpoint, overwrite=overwrite)
        click.echo(f"{out}: {layout} layout; load it with transformers:")
        click.echo(f"    AutoModelForCausalLM.from_pretrained({str(out)!r})")
        click.echo(f"    AutoTokenizer.from_pretrained({str(out)!r})")
        return 0
    from traindoctor.record.export import export_record

    export_record(run, out, form)
    click.echo(f"wrote {out}")
    return 0
