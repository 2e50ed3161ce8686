"""`python3 /opt/trainmaster`: the agent, from the folder that an init container laid into a user's own image."""

import sys

from trainmaster.agent.__main__ import main

sys.path.pop(0)  # this folder's: the agent is in, and what it imports later it finds through its package
sys.exit(main())
