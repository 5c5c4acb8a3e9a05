from traindoctor.cli import cli

cli.main(
    [
        "train", "--out", "written",
        "--layers", "3",
        "--heads", "3",
        "--width", "96",
        "--block", "96",
        "--batch", "8",
        "--tokenizer", "word",
        "--vocab-size", "2000",
        "--steps", "180",
        "--eval-every", "60",
        "--lr", "2e-4",
        "--norm", "layer",
        "--positions", "learned",
        "--mlp", "gelu",
    ],
    standalone_mode=False,
)
