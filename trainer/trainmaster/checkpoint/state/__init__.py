"""The content of checkpoints: how the state of a training is captured, saved, loaded and resumed."""
