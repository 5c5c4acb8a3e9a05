from traindoctor.cli import cli

cli.main(
    [
        "train", "--out", "written",
        "--layers", "2",
        "--heads", "4",
        "--width", "64",
        "--block", "64",
        "--batch", "16",
        "--tokenizer", "word",
        "--vocab-size", "1000",
        "--steps", "300",
        "--eval-every", "100",
        "--lr", "4e-3",
        "--sample-temperature", "0",
    ],
    standalone_mode=False,
)
