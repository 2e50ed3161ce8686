"""A copy of the chart whose default images are those that were just pushed: `package.py --images FILE TARGET`.

FILE is what `make images REGISTRY=... TAG=...` writes. The copy is a chart that `helm package` takes. It needs Python
alone.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

CHART = Path(__file__).parent / "trainmaster"
_FIELD = re.compile(r'^  (repository|tag|digest): "?([^"\n]*)"?$')


class PackageError(Exception):
    """What is wrong with the file of images, as one sentence."""


def images_in(text: str) -> dict[str, dict[str, str]]:
    """Return the fields of each image in a file of values. Raises PackageError if it holds anything else."""
    images: dict[str, dict[str, str]] = {}
    now = ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if re.fullmatch(r"[A-Za-z]+:", line):
            now = line.removesuffix(":")
            images[now] = {}
        elif now and (found := _FIELD.match(line)):
            images[now][found[1]] = found[2]
        else:
            raise PackageError(f"{line!r} is not what `make images` writes")
    if not images:
        raise PackageError("it names no image")
    return images


def with_images(values: str, images: dict[str, dict[str, str]]) -> str:
    """Return values.yaml with other defaults for the images. Raises PackageError for an image that it doesn't have."""
    lines, now, left = [], "", {name: set(fields) for name, fields in images.items()}
    for line in values.splitlines():
        if re.fullmatch(r"[A-Za-z]+:.*", line):
            now = line.partition(":")[0]
        found = _FIELD.match(line)
        if found and found[1] in left.get(now, ()):
            left[now].remove(found[1])
            line = f'  {found[1]}: "{images[now][found[1]]}"'
        lines.append(line)
    missing = [f"{name}.{field}" for name, fields in left.items() for field in sorted(fields)]
    if missing:
        raise PackageError(f"values.yaml of the chart has no {', '.join(missing)}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="charts/package.py", description=__doc__)
    parser.add_argument("target", type=Path, help="folder to write, which must not be there")
    parser.add_argument("--images", type=Path, required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        values = with_images((CHART / "values.yaml").read_text(), images_in(options.images.read_text()))
        shutil.copytree(CHART, options.target)
    except PackageError as error:
        sys.stderr.write(f"package.py: {options.images}: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"package.py: {error.filename}: {error.strerror}\n")
        return 2
    (options.target / "values.yaml").write_text(values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
