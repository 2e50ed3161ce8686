"""Names of the environment variables of agents and ranks. Variables that torchrun sets keep torchrun's names."""

from __future__ import annotations

# Given to the agent by the pod.
JOB_UID = "TRAINMASTER_JOB_UID"
NAMESPACE = "TRAINMASTER_NAMESPACE"
JOB = "TRAINMASTER_JOB"
ROLE = "TRAINMASTER_ROLE"
SLOT = "TRAINMASTER_SLOT"
INCARNATION = "TRAINMASTER_INCARNATION"
POD_UID = "TRAINMASTER_POD_UID"
OPERATOR_URL = "TRAINMASTER_OPERATOR_URL"  # http://127.0.0.1:8443
TOKEN_FILE = "TRAINMASTER_TOKEN_FILE"  # bearer token, bound to the pod's uid
CA_FILE = "TRAINMASTER_CA_FILE"  # certificates by which the operator is known, PEM; unset: no TLS, or the system's
POD_IP = "TRAINMASTER_POD_IP"  # the address under which peers reach this pod's stores
ZYGOTE = "TRAINMASTER_ZYGOTE"  # socket of a zygote shared by the machine; unset: the agent starts its own
ZYGOTE_ENABLED = "TRAINMASTER_ZYGOTE_ENABLED"  # "0": ranks are executed, never forked
FRAMEWORK = "TRAINMASTER_FRAMEWORK"  # Trainmaster, PyTorch, TensorFlow, ...: see `agent.frameworks`
RANKS_PER_POD = "TRAINMASTER_RANKS_PER_POD"
REVISION = "TRAINMASTER_REVISION"  # name of what the pods of one run are made from; unset: from nothing kept
PROGRAM = "TRAINMASTER_PROGRAM"  # hash of the config, or of the commands: ranks of one round have the same
COMMAND = "TRAINMASTER_COMMAND"  # JSON list: the user's command, for frameworks other than Trainmaster
RESTART_COMMAND = "TRAINMASTER_RESTART_COMMAND"  # JSON list: the command from the second round on; unset: the same
PYTHON = "TRAINMASTER_PYTHON"  # the interpreter that `python` means in a command; unset: the agent's own
TERMINATION_LOG = "TRAINMASTER_TERMINATION_LOG"
CPU_MILLIS = "TRAINMASTER_CPU_MILLIS"  # thousandths of a core that the container has or asked for; unset: all there are
ONE_MACHINE = "TRAINMASTER_ONE_MACHINE"  # "1": all pods of the job are processes of one machine, and share its cores
PODS_AS_NODES = "TRAINMASTER_PODS_AS_NODES"  # "1": there each pod still counts as a node for its local ranks
WITHOUT_DEVICES = "TRAINMASTER_WITHOUT_DEVICES"  # why ranks see none of the machine's: a sentence for the pod's log
PINNING = "TRAINMASTER_PINNING"  # "1": each rank gets cores of its own
GRACE_S = "TRAINMASTER_GRACE_S"  # seconds that an agent has after SIGTERM; 25 when unset

# Given to the agent by the pod and passed on to the ranks.
CONFIG = "TRAINMASTER_CONFIG"  # JSON of the training config
CHECKPOINT_DIR = "TRAINMASTER_CHECKPOINT_DIR"
CHECKPOINT_TIMEOUT = "TRAINMASTER_CHECKPOINT_TIMEOUT"  # seconds that the end waits for storage; 900 when unset
RAM_DIR = "TRAINMASTER_RAM_DIR"  # folder in the pod's memory for checkpoints; unset: no memory tier
RAM_BUDGET = "TRAINMASTER_RAM_BUDGET"  # bytes that may lie there
RAM_EVERY = "TRAINMASTER_RAM_EVERY"  # steps between saves to it; 0: only after a failure; unset: by what they cost
OUTPUT_DIR = "TRAINMASTER_OUTPUT_DIR"  # metrics.jsonl goes there
DIGESTS = "TRAINMASTER_DIGESTS"  # "1": ranks write what their states are after each step to OUTPUT_DIR/digests
FAULTS = "TRAINMASTER_FAULTS"  # JSON list of faults to inject
FAULT_SOCKET = "TRAINMASTER_FAULT_SOCKET"  # unix socket of the process that kills pods and operators for tests
FAULT_DIR = "TRAINMASTER_FAULT_DIR"  # set by the agent: its folder of injected faults, see `fault_protocol`

# Given to a rank by its agent, in addition to RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and the rest of torchrun's.
CPUS = "TRAINMASTER_CPUS"  # the kernel's numbers, as in 0,1,8,9, of those that it is pinned to; unset: it isn't
POD_RANK = "TRAINMASTER_POD_RANK"  # which of the RANKS_PER_POD ranks of its pod this is, from 0
ROUND = "TRAINMASTER_ROUND"
STORE = "TRAINMASTER_STORE"  # host:port of the round's store, whatever a script makes of MASTER_ADDR and MASTER_PORT
NUMBERS = "TRAINMASTER_NUMBERS"  # JSON of torchrun's variables of this rank, whatever a script makes of them
PROGRESS_FD = "TRAINMASTER_PROGRESS_FD"
CHANNEL_FD = "TRAINMASTER_CHANNEL_FD"
RESUME = "TRAINMASTER_RESUME"
FIRST_STEP_AT = "TRAINMASTER_FIRST_STEP_AT"  # seconds since 1970 of the job's first step; unset: none, or not known
MESH = "TRAINMASTER_MESH"  # JSON object
PEER_ADDRESS = "TRAINMASTER_PEER_ADDRESS"  # host:port at which this rank's agent answers peers
PEER_SECRET = "TRAINMASTER_PEER_SECRET"  # the secret by which peers of this round authenticate
MICRO_DIVISOR = "TRAINMASTER_MICRO_DIVISOR"  # how many times smaller than in the config the micro-batch is
SKIPPED = "TRAINMASTER_SKIPPED"  # JSON list of [first, end): positions of the data's order to leave out
