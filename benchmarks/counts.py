"""How often something is measured, as an option: too few times are refused, since nothing could be told of them."""

from __future__ import annotations

import argparse


def check(parser: argparse.ArgumentParser, given: argparse.Namespace, **least: int) -> None:
    """End the program with a sentence if an option, or one of its numbers, is below what is needed of it.

    least: of each option, by its name with underscores.
    """
    for name, needed in least.items():
        value = getattr(given, name)
        for number in value if isinstance(value, list) else [value]:
            if number < needed:
                parser.error(f"--{name.replace('_', '-')} {number}: at least {needed} is needed")
