"""What the operator exports: the labels of each series, and the values that a label may have where these are known."""

from __future__ import annotations

import re
from functools import cache

from docs.generate import metrics_page
from trainmaster_operator.runtime.observability.job_metric_table import FAMILIES


@cache
def labels_by_series() -> dict[str, frozenset[str]]:
    """The labels of each series, those of single jobs among them."""
    series = {family.full_name: frozenset({"namespace", "job", *family.labels}) for family in FAMILIES}
    for line in metrics_page.render().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) < 4 or not cells[0].startswith("`"):
            continue
        name, labels = cells[0].strip("`"), frozenset(re.findall(r"`(\w+)`", cells[2]))
        if name in series:
            continue
        if cells[1] == "histogram":
            series |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            series[name] = labels
    return series
