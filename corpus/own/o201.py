from traindoctor.cli import cli

cli.main(
    [
        "train", "--out", "written",
        "--layers", "2",
        "--heads", "4",
        "--width", "64",
        "--block", "64",
        "--batch", "8",
        "--tokenizer", "bpe",
        "--vocab-size", "500",
        "--steps", "120",
        "--eval-every", "60",
        "--lr", "5e-4",
    ],
    standalone_mode=False,
)
