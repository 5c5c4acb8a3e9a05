"""What the other packages that measure stand on: names, frames of the script, the state of torch, our bounds."""
