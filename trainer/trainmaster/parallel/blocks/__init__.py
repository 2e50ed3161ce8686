"""Changes to each block of a model: precision, recomputation, compilation."""
