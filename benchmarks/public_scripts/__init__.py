"""Public scripts as they are, under torchrun and under `trainmaster run`: do they end alike, and how fast do they come
back after a process of theirs was killed?"""
