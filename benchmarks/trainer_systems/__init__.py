"""What `benchmarks.trainer` compares: one module for each system, each with `train(job, meter)`."""
