"""Programs beside training: the tables of parity, planner, tokens, Hugging Face's format, profiles."""
