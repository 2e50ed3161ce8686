"""An image with another torch, played by a sitecustomize: the torch that is there, under another version."""

from __future__ import annotations

VERSION = "2.0.1"

OTHER_TORCH = f"""
import importlib.machinery, os, sys

class Version(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        module.__version__ = "{VERSION}"

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "torch.version":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Version(name, spec.origin)
        return spec

if os.environ.get("TRAINMASTER_SLOT") == "1":
    sys.meta_path.insert(0, Finder())
"""
"""The text of the sitecustomize. Only pods of slot 1 have the other version."""
