"""A model writes its samples after 120 short steps."""

from traindoctor.cli import cli

model = "--layers 2 --heads 4 --width 64 --block 64 --tokenizer bpe --vocab-size 500"
training = "--batch 8 --steps 120 --eval-every 60 --lr 5e-4"
cli.main(["train", *model.split(), *training.split()], standalone_mode=False)
