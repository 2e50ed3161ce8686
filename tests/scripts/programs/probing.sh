#!/bin/bash
# A shell script that asks Python whether a module is there, and goes on if it isn't.
python -c 'import a_module_that_nobody_has' 2> /dev/null || echo "goes on without the module"
python -u -X faulthandler tells.py "$@" 2>&1 | tee "told-$RANK.log"
