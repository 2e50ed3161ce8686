"""Programs for use outside of a training: parity table, planner, tokenizing, Hugging Face's format, profiles."""
