"""`python3 /opt/trainmaster`: the agent from the folder that an init container laid into a user's own image."""

import sys

from trainmaster.agent.__main__ import main

sys.path.pop(0)  # the agent is in; what it starts must not see this folder
sys.exit(main())
