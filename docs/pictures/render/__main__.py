"""Draws the dashboards as PNG files for the documentation: `python -m docs.pictures.render`.

The data come from a real Prometheus with a made-up history (tests/dashboards/scenes.py), the panels are drawn by
Grafana's own components in a headless Chromium. It needs Node.js with npm, and `chromium` on the PATH; nothing of it is
part of CI. Without `--scene` the four dashboards of the documentation are drawn into docs/pictures.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.dashboards import asking, scenes
from tests.dashboards.asking import Chosen
from tests.dashboards.history import STEP_S
from tests.dashboards.prometheus import BadQuery, Prometheus, Series, serving, write_blocks

HERE = Path(__file__).parent
BUILT = HERE / "built" / "page.js"
WIDTH = 1420
POINTS = 180
"""That a curve has at most."""
SETTLE_MS = 8000
"""Virtual time in which the page must have drawn everything."""

Json = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.pictures.render", description=__doc__)
    parser.add_argument("--scene", action="append", metavar="NAME", help=f"one of: {', '.join(scenes.SCENES)}")
    parser.add_argument(
        "--out", type=Path, default=HERE.parent, help="folder of the PNG files (default: docs/pictures)"
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.scene or () if name not in scenes.SCENES]
    if unknown:
        sys.stderr.write(f"--scene {unknown[0]}: there are {', '.join(scenes.SCENES)}\n")
        return 2
    for program in ("npm", "node", "chromium"):
        if shutil.which(program) is None:
            sys.stderr.write(f"{program} is not on the PATH; the pictures are drawn with it\n")
            return 2
    build()
    for name in options.scene or [scenes.DOCUMENTATION]:
        draw_scene(name, options.out)
    return 0


def build() -> None:
    """Install Grafana's components once, and bundle the page."""
    if not (HERE / "node_modules" / "@grafana" / "ui").is_dir():
        words = ["npm", "install", "--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(words, cwd=HERE, check=True, stdout=subprocess.DEVNULL)
    loaders = [f"--loader:.{kind}=dataurl" for kind in ("ttf", "woff", "woff2", "svg", "png", "gif")]
    command = [
        *("node", "node_modules/esbuild/bin/esbuild", "page.tsx", "--bundle", "--minify", f"--outfile={BUILT}"),
        *("--define:process.env.NODE_ENV='production'", "--define:process.env={}", "--log-level=error"),
    ]
    subprocess.run([*command, *loaders], cwd=HERE, check=True)


def draw_scene(name: str, out: Path) -> None:
    """Make up the history of a scene, ask Prometheus for each panel of its dashboards, and draw them."""
    scene = scenes.SCENES[name]
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
        write_blocks(scene.history(), Path(folder))
        with serving(Path(folder), lookback_s=0.9 * STEP_S) as prometheus:
            for uid, variables in scene.dashboards.items():
                page = asked(prometheus, asking.dashboards()[uid], variables, scene.begin_s, scene.end_s)
                prefix = "" if name == scenes.DOCUMENTATION else f"{name}-"
                shoot(page, out / f"{prefix}{uid.removeprefix('trainmaster-')}.png")


def asked(prometheus: Prometheus, dashboard: Json, variables: Mapping[str, str], begin_s: float, end_s: float) -> Json:
    """Everything that the page needs to draw a dashboard."""
    length_s = end_s - begin_s
    chosen = Chosen({**asking.everything().variables, **variables}, range_s=length_s)
    step_s = max(30.0, length_s / POINTS)
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


if __name__ == "__main__":
    sys.exit(main())
