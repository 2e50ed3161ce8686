"""What the ranks of a run or a job print, as `trainmaster logs` shows it."""
