"""What several causes bring about alike: the groups that checks name in `explains=`."""

# What any run shows that does not learn, whatever the reason.
NOT_LEARNING = ("undertrained", "model-too-small")
# Steps that are too long, by whatever cause, end here.
TOO_LONG = ("gradients-exploding", "dead-activations", "gradients-vanishing", "fp16-overflow")
# Steps that are too short, by whatever cause, look like a rate that is too low.
TOO_SHORT = ("lr-too-low", *NOT_LEARNING)
# A forward pass through which nothing passes.
NOTHING_PASSES = ("gradients-vanishing", "attention-blind", "labels-unrelated", "lr-too-low")
