"""`python -m trainmaster.agent`: the supervisor of one pod. With `fault JSON` or `profile …`, it sends a request to the
supervisor or to the ranks that run in this pod."""

from __future__ import annotations

import asyncio
import os
import sys

from trainmaster.agent.shell import fault_socket, profile_commands
from trainmaster.agent.shell.launching.agent_settings import Settings, read_environment
from trainmaster.agent.shell.supervisor import Supervisor
from trainmaster.contract.wire import ExitCode


async def _run(settings: Settings) -> int:
    supervisor = Supervisor(settings)
    code = await supervisor.run()
    if supervisor.uploads.stuck:  # the interpreter would wait for the threads that wait for storage
        sys.stdout.flush()
        os._exit(code)
    return code


def main() -> int:
    if sys.argv[1:2] == ["fault"]:
        return fault_socket.request(sys.argv[2:])
    if sys.argv[1:2] == ["profile"]:
        return profile_commands.command(sys.argv[2:])
    try:
        settings = read_environment()
    except ValueError as error:
        print(f"trainmaster agent: {error}", file=sys.stderr)
        return ExitCode.CONFIG_ERROR
    if settings.without_devices:
        print(f"[agent] {settings.without_devices}", flush=True)
    return asyncio.run(_run(settings))


if __name__ == "__main__":
    sys.exit(main())
