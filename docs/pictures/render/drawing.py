"""Draws a dashboard as a PNG file, from the answers of a Prometheus, by Grafana's own components in a headless browser.

It needs Node.js with npm, and `chromium` on the PATH.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.dashboards import asking
from tests.dashboards.asking import Chosen
from tests.dashboards.prometheus import BadQuery, Prometheus, Series

HERE = Path(__file__).parent
BUILT = HERE / "built" / "page.js"
WIDTH = 1420
POINTS = 180
"""That a curve has at most."""
SETTLE_MS = 8000
"""Virtual time in which the page must have drawn everything."""
FINEST_S = 30.0
"""Between two points of a curve, at least."""
RATE_INTERVAL_S = 240.0
PROGRAMS = ("npm", "node", "chromium")

Json = dict[str, Any]


def lacking() -> str:
    """The name of a program that the pictures are drawn with and that is not on the PATH; "" if all are."""
    return next((program for program in PROGRAMS if shutil.which(program) is None), "")


def build() -> None:
    """Install Grafana's components once, and bundle the page if it has changed since."""
    if not (HERE / "node_modules" / "@grafana" / "ui").is_dir():
        words = ["npm", "install", "--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(words, cwd=HERE, check=True, stdout=subprocess.DEVNULL)
    sources = (HERE / "page.tsx", HERE / "package.json")
    if BUILT.exists() and BUILT.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return
    loaders = [f"--loader:.{kind}=dataurl" for kind in ("ttf", "woff", "woff2", "svg", "png", "gif")]
    command = [
        *("node", "node_modules/esbuild/bin/esbuild", "page.tsx", "--bundle", "--minify", f"--outfile={BUILT}"),
        *("--define:process.env.NODE_ENV='production'", "--define:process.env={}", "--log-level=error"),
    ]
    subprocess.run([*command, *loaders], cwd=HERE, check=True)


def asked(
    prometheus: Prometheus,
    dashboard: Json,
    variables: Mapping[str, str],
    begin_s: float,
    end_s: float,
    *,
    finest_s: float = FINEST_S,
    rate_interval_s: float = RATE_INTERVAL_S,
) -> Json:
    """Everything that the page needs to draw a dashboard."""
    length_s = end_s - begin_s
    step_s = max(finest_s, length_s / POINTS)
    chosen = Chosen({**asking.everything().variables, **variables}, length_s, rate_interval_s, step_s)
    drawn = []
    for panel in dashboard["panels"]:
        answers = []
        for target in panel.get("targets") or []:
            expr = chosen.fill(target["expr"])
            try:
                found = (
                    prometheus.at(expr, end_s) if target["instant"] else prometheus.over(expr, begin_s, end_s, step_s)
                )
            except BadQuery as error:
                raise SystemExit(f"{dashboard['title']}: {panel['title']}: {error}") from None
            answers.append({"refId": target["refId"], "series": [told(one, target, step_s) for one in found]})
        drawn.append({"panel": panel, "answers": answers})
    marks = []
    for annotation in dashboard["annotations"].get("list") or []:
        found = prometheus.over(chosen.fill(annotation["expr"]), begin_s, end_s, step_s)
        times = sorted({at for one in found for at, _ in one.points})
        firsts = [at for before, at in zip([0.0, *times], times, strict=False) if at - before > 1.5 * step_s]
        marks.append(
            {"name": annotation["name"], "color": annotation["iconColor"], "times": [at * 1000 for at in firsts]}
        )
    words = ", ".join(f"{name} {value}" for name, value in variables.items())
    times = {"begin": begin_s * 1000, "end": end_s * 1000, "zone": "utc"}
    return {"title": dashboard["title"], "chosen": words, **times, "panels": drawn, "marks": marks}


def told(series: Series, target: Json, step_s: float) -> Json:
    """A series as the page wants it. Where samples are missing a curve has a gap."""
    labels = dict(series.labels)
    legend = target["legendFormat"]
    name = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)
    points: list[tuple[float, float | None]] = []
    for at, value in series.points:
        if points and at - points[-1][0] / 1000 > 1.5 * step_s:
            points.append(((at - step_s) * 1000, None))
        points.append((at * 1000, None if value != value else value))
    return {"name": name or "Value", "labels": labels, "points": points}


def shoot(page: Json, file: Path) -> None:
    """Draw one page in Chromium and write the PNG file."""
    rows = max(panel["panel"]["gridPos"]["y"] + panel["panel"]["gridPos"]["h"] for panel in page["panels"])
    height = 56 + rows * 38 + 20
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
        html = Path(folder, "page.html")
        data = json.dumps(page).replace("</", "<\\/")
        html.write_text(
            f'<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><body style="margin:0">'
            f'<link rel="stylesheet" href="{BUILT.with_suffix(".css").as_uri()}">'
            f'<div id="root"></div><script>window.PAGE={data}</script><script src="{BUILT.as_uri()}"></script>'
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        words = [
            *(
                "chromium",
                "--headless",
                "--no-sandbox",
                "--hide-scrollbars",
                "--enable-logging=stderr",
                "--allow-file-access-from-files",
            ),
            *(f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{height}"),
            *(f"--virtual-time-budget={SETTLE_MS}", f"--screenshot={file.resolve()}", html.as_uri()),
        ]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    wrong = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "rror" in line]
    if wrong:
        raise SystemExit(f"{page['title']}: the page has an error: {wrong[0]}")
    sys.stdout.write(f"{file}\n")
