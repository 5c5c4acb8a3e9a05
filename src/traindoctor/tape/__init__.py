"""One training step, written down and run again."""
