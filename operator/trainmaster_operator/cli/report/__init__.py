"""The page about a run or a job: curves, recoveries, failure."""
