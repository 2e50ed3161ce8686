#!/bin/bash
# What people keep beside their script: variables, then its line.
set -euo pipefail
export FLAVOUR=${FLAVOUR:-vanilla}
python tells.py "$@"
