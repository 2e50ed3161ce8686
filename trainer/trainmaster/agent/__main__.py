"""`python -m trainmaster.agent`: the supervisor of one pod. With `fault JSON` or `profile STEPS`, it sends a request to
the supervisor that runs in this pod."""

from __future__ import annotations

import asyncio
import os
import sys

from trainmaster.agent.shell import fault_socket
from trainmaster.agent.shell.launching.agent_settings import Settings, read_environment
from trainmaster.agent.shell.supervisor import Supervisor
from trainmaster.contract.wire import ExitCode, environment, fault_protocol, profile_request


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
        return request_profile(sys.argv[2:])
    try:
        settings = read_environment()
    except ValueError as error:
        print(f"trainmaster agent: {error}", file=sys.stderr)
        return ExitCode.CONFIG_ERROR
    if settings.without_devices:
        print(f"[agent] {settings.without_devices}", flush=True)
    return asyncio.run(_run(settings))


def request_profile(words: list[str]) -> int:
    """Write a request for rank 0 of this pod, and print what happens to it. Return the exit code.

    Anybody who may run a command in the pod may call this.
    """
    try:
        steps = int(words[0])
        profile_request.ask(fault_protocol.folder(os.environ.get(environment.POD_UID, "")), steps)
    except (OSError, ValueError, IndexError) as error:
        print(f"no agent of this pod can be asked: {error}", file=sys.stderr)
        return 1
    print(f"the next {steps} steps are recorded; rank 0's log says when, and where the page lies")
    return 0


if __name__ == "__main__":
    sys.exit(main())
