"""Parallelism strategies, one verb each: `apply(model, mesh, config)`."""
