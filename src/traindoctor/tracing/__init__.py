"""Makes a trace of a PyTorch side: a few training steps, every tensor in the order in which it is made."""
