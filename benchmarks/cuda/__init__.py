"""The first half hour on one GPU: six commands that show what works there, whether jobs come back, how fast training
is and what checkpoints cost.

    python -m benchmarks.cuda [COMMAND …] [--out FOLDER] [--seconds S] [--rows PATTERN …]

The commands are works, runs, speed, checkpoints, parity and profile. Each prints a table and appends each row to
FOLDER/COMMAND.jsonl as soon as it is known. On a machine without a CUDA device the same commands run at toy size on the
CPU. docs/gpu.md says what each table proves.
"""
