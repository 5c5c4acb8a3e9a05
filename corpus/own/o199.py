from traindoctor.cli import cli

cli.main(
    [
        "train", "--out", "written",
        "--layers", "2",
        "--heads", "2",
        "--width", "96",
        "--block", "64",
        "--batch", "16",
        "--steps", "260",
        "--eval-every", "130",
        "--lr", "3e-3",
        "--sample-temperature", "0",
    ],
    standalone_mode=False,
)
