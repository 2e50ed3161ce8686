"""What is measured of a training: losses held out, divergence, noise, utilization, memory, and its log."""
