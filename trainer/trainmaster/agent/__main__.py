"""`python -m trainmaster.agent`: the supervisor of one pod. With `fault JSON` or `profile …`, it sends a request to the
supervisor or to the ranks that run in this pod."""

from __future__ import annotations

import asyncio
import os
import sys

from trainmaster.agent.shell import fault_socket, pod_log, profile_commands
from trainmaster.agent.shell.settings_reading import EndedEarly, read_settings
from trainmaster.agent.shell.supervisor import Supervisor
from trainmaster.contract.wire import ExitCode


async def _run() -> int:
    try:
        settings = await read_settings(os.environ)
    except ValueError as error:
        pod_log.complain(str(error))
        return ExitCode.CONFIG_ERROR
    except EndedEarly as ended:
        return ended.code
    if settings.without_devices:
        pod_log.note(settings.without_devices)
    supervisor = Supervisor(settings)
    code = await supervisor.run()
    if supervisor.uploads.stuck:  # the interpreter would wait for the threads that wait for storage
        pod_log.finish()
        os._exit(code)
    return code


def main() -> int:
    if sys.argv[1:2] == ["fault"]:
        return fault_socket.request(sys.argv[2:])
    if sys.argv[1:2] == ["profile"]:
        return profile_commands.command(sys.argv[2:])
    code = asyncio.run(_run())
    pod_log.finish()
    return code


if __name__ == "__main__":
    sys.exit(main())
