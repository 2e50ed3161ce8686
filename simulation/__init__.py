"""The operator in virtual time, against agents, kubelets and storage that are records, with faults by seed.

One seed is one schedule, always the same: `python -m simulation seeds 0:1000`.
"""
