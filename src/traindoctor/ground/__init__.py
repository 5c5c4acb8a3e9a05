"""What the tape, the experiments and the probes stand on: names, frames of the script, the state of torch, and our bounds."""
