"""Draws the dashboards as PNG files for the documentation: `python -m docs.pictures.render`.

The data come from a real Prometheus with a made-up history (tests/dashboards/scenes.py), the panels are drawn by
Grafana's own components in a headless Chromium. It needs Node.js with npm, and `chromium` on the PATH; nothing of it is
part of CI. Without `--scene` the four dashboards of the documentation are drawn into docs/pictures.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from docs.pictures.render.drawing import HERE, asked, build, lacking, shoot
from tests.dashboards import asking, scenes
from tests.dashboards.history import STEP_S
from tests.dashboards.prometheus import serving, write_blocks


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
    if program := lacking():
        sys.stderr.write(f"{program} is not on the PATH; the pictures are drawn with it\n")
        return 2
    build()
    for name in options.scene or [scenes.DOCUMENTATION]:
        draw_scene(name, options.out)
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
