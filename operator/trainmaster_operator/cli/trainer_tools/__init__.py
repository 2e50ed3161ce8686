"""Commands for models, data and shells, most of them carried out by the trainer."""
