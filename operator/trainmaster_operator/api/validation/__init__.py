"""What is wrong with a job, found before anything runs."""
