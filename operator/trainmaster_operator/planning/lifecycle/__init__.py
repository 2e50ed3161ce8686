"""How a job is suspended, resized, updated and ended, and what people see of its progress."""
