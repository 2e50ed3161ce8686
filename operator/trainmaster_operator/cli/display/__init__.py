"""What a terminal shows of a run or a job: its state, its changes, and what its ranks print."""
