"""The faults that a local run injects into its pods, its operator and its store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from trainmaster.contract.wire import fault_protocol as wire
from trainmaster_operator.api.api_group import GROUP
from trainmaster_operator.cli.fault_injection.run_faults import Act, Fault
from trainmaster_operator.cli.run import local_processes
from trainmaster_operator.cluster.port import POD, NotFound, Object
from trainmaster_operator.local.api_server.memory_store import MemoryStore
from trainmaster_operator.local.api_server.store_faults import Trouble
from trainmaster_operator.local.pod_process import faults_socket
from trainmaster_operator.local.process_kubelet import LOST

ASK_TIMEOUT_S = 10.0


class Troublemaker:
    """Performs injected faults. `acts`: the functions for `FaultServer`. `trouble`: the faults between the operator
    and the store. `crashes`: crashes of the operator that wait for its writes."""

    def __init__(
        self,
        store: MemoryStore,
        namespace: str,
        run_dir: Path,
        trouble: Trouble,
        kill_operator: Callable[[], Awaitable[None]],
    ) -> None:
        self._store, self._namespace, self._run_dir = store, namespace, run_dir
        self._trouble, self._kill_operator = trouble, kill_operator
        self.crashes: list[Fault] = []
        self.acts: dict[str, Act] = {
            "kill-pod": self._kill_pod,
            "lose-node": self._lose_node,
            "kill-operator": self._kill,
            "crash-operator": self._crash,
            "api-outage": self._outage,
            "lose-store": self._lose_store,
            "partition": self._ask_agent,
            "fill-disk": self._ask_agent,
            "kill-agent": self._ask_agent,
        }

    async def _kill_pod(self, _: Fault, name: str) -> str:
        pod = self._find(name)
        if pod is not None:
            local_processes.kill_pod(pod["metadata"]["uid"])
        return "" if pod is not None else f"there is no pod {name}"

    async def _lose_node(self, _: Fault, name: str) -> str:
        """Simulate the loss of a node. Each pod of this machine stands for a node: its kubelet ends its processes
        and no longer reports anything."""
        if self._find(name) is None:
            return f"there is no pod {name}"
        self._store.patch(POD, self._namespace, name, {"metadata": {"annotations": {LOST: "true"}}})
        return ""

    async def _kill(self, _: Fault, __: str) -> str:
        await self._kill_operator()
        return ""

    async def _crash(self, fault: Fault, _: str) -> str:
        async def crash() -> None:
            self.crashes.remove(fault)
            await self._kill_operator()

        self.crashes.append(fault)
        self._trouble.after_writes(fault["writes"], crash)
        return ""

    async def _outage(self, fault: Fault, _: str) -> str:
        self._trouble.refuse_for(max(fault["seconds"], self._trouble.refuses_s))
        return ""

    async def _lose_store(self, fault: Fault, _: str) -> str:
        """Let the agent that hosts the store of the round close it."""
        pods = self._store.list(POD, self._namespace, {f"{GROUP}/slot": None}).items
        for pod in sorted(pods, key=lambda pod: int(pod["metadata"]["labels"][f"{GROUP}/slot"])):
            if not await self._ask_agent(fault, pod["metadata"]["name"]):
                return ""
        return "no pod hosts the store of the round"

    async def _ask_agent(self, fault: Fault, name: str) -> str:
        pod = self._find(name)
        if pod is None:
            return f"there is no pod {name}"
        path = faults_socket(self._run_dir, name, pod["metadata"]["uid"])
        question = {"do": {**fault, "step": 0}}
        try:
            answer: dict[str, Any] = await asyncio.to_thread(wire.ask, path, question, ASK_TIMEOUT_S)
        except (OSError, json.JSONDecodeError) as error:
            return f"its agent doesn't answer: {error}"
        return str(answer.get("refused", "" if answer else "its agent hung up"))

    def _find(self, name: str) -> Object | None:
        try:
            return self._store.find(POD, self._namespace, name)
        except NotFound:
            return None
