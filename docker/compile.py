"""Compile the Python packages in a folder: `compile.py FOLDER [ROOT]`; ROOT: what will be copied to `/` later.

The bytecode is never checked against its source: it is the same whenever it is made, a layer whose files lost their
times doesn't make it stale, and a container with a read-only file system starts as fast as any. Files that don't
compile (packages carry templates, and other versions' syntax) are left alone.
"""

import compileall
import py_compile
import sys

folder, root = (*sys.argv[1:], None)[:2]
compileall.compile_dir(
    folder,
    quiet=2,
    workers=0,
    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    stripdir=root,
    prependdir=root and "/",
)
