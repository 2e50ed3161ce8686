"""Which tests a change can reach: `python -m tests.suite.reach` runs them."""
