#!/bin/bash
# A wrapper in Python, which starts the script as a process that inherits nothing.
set -euo pipefail
echo "starting $1"
python -c 'import subprocess, sys; sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)' "$@"
