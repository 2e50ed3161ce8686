"""Texts as a file of token numbers, which the source `tokens` reads: done once, ahead of training.

    python -m trainmaster.tools.tokenizing SOURCE OUT.npy --tokenizer tokenizer.json [--column text] [--glob '**/*.txt']

A job could not do it while it trains: where a token lies in a text is known only once all before it are tokens.
"""
