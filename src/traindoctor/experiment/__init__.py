"""Steps of the run made again with one thing changed: snapshots, batches, rules of optimizers and trials."""
