"""Commands for models, data and shells. The trainer carries out most of them."""
