"""Amounts of memory as Kubernetes writes them."""

from __future__ import annotations

import pytest

from trainmaster_operator.api.quantities import bytes_of, quantity_of


@pytest.mark.parametrize(
    ("quantity", "size"),
    [
        ("0", 0),
        ("128974848", 128974848),
        ("1Ki", 1024),
        ("1.5Gi", 1610612736),
        ("500M", 500_000_000),
        ("129e6", 129_000_000),
        ("2E", 2 * 10**18),
        ("1500m", 2),
        ("9007199254740993", 9007199254740993),
        ("8 GB", None),
        ("", None),
        ("-1Gi", None),
    ],
)
def test_an_amount_is_read_as_the_api_server_reads_it(quantity: str, size: int | None) -> None:
    assert bytes_of(quantity) == size


@pytest.mark.parametrize("quantity", ["0", "3Gi", "1536Mi", "1000", "4Ti", "1048577Ki"])
def test_an_amount_that_is_written_is_read_again(quantity: str) -> None:
    size = bytes_of(quantity)
    assert size is not None
    assert quantity_of(size) == quantity
