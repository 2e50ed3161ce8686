"""Ranks compare their software before their first collective, through the store of their round.

The first rank that arrives writes its software to the store, and each other rank compares its own with that. This is
one request per rank for every size of the world. A rank that differs ends, so no rank gets past the rendezvous.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from trainmaster import __version__
from trainmaster.contract.wire import software_differences
from trainmaster.errors import ConfigError
from trainmaster.host import installed_versions, own_pod
from trainmaster.rank import failure_message

KEY = "software"
PACKAGES = (software_differences.TORCH, *software_differences.FRAMEWORKS)


def compare(store: Any) -> None:
    """Compare this rank with the first one that came to `store`, a torch store of this round.

    Raises ConfigError, in a sentence that names both pods and what differs.
    """
    pod, own = own_pod.name(), of_this_process()
    first_pod, first = json.loads(store.compare_set(KEY, "", json.dumps([pod, own])))
    words = software_differences.difference(first, first_pod, own, pod)
    if words:
        raise ConfigError(words)


def compare_script(store: Any) -> None:
    """Compare as `compare` does, and end this process if it differs: a script could catch an exception and continue
    alone."""
    try:
        compare(store)
    except ConfigError as error:
        raise SystemExit(failure_message.refuse(str(error))) from None


def of_this_process() -> dict[str, str]:
    """Return the software of this rank. Nothing is imported: a package that is not imported by now is left out."""
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in PACKAGES}
    return {
        **software_differences.program_of(os.environ),
        installed_versions.PYTHON: installed_versions.python_version(),
        software_differences.TRAINMASTER: __version__,
        **{name: str(version) for name, version in versions.items() if isinstance(version, str)},
    }
