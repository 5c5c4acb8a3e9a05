"""Samples are written by always taking the likeliest token."""

from traindoctor.cli import cli

settings = "--layers 2 --heads 2 --width 96 --block 64 --batch 16 --steps 260 --lr 3e-3"
sampling = "--eval-every 130 --sample-temperature 0"
cli.main(["train", *settings.split(), *sampling.split()], standalone_mode=False)
