"""What the command line of a user's program means: which script ranks run, with which arguments and variables.

Standard library only, and pure except for `own_parser_process`, which runs a launcher's own parser in a child process.
The operator reads a command to refuse what cannot work, and the agent reads it to run it.
"""

from trainmaster.contract.launch.command_line import Command, parse
from trainmaster.contract.launch.launch_errors import LaunchRefused
from trainmaster.contract.launch.launcher_option_tables import UnknownOption

__all__ = ["Command", "LaunchRefused", "UnknownOption", "parse"]
