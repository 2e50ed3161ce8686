"""The columns of `kubectl get dtj`. A column can only show one field of the job, so each computed value has a text
field in the status."""

COLUMNS = [
    {"name": "State", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Step", "type": "integer", "jsonPath": ".status.progress.step"},
    {"name": "Loss", "type": "string", "jsonPath": ".status.progress.loss"},
    {
        "name": "ETA",
        "type": "string",
        "jsonPath": ".status.progress.eta",
        "description": "The time until the last step is expected to be done.",
    },
    {
        "name": "Workers",
        "type": "string",
        "jsonPath": ".status.workers.summary",
        "description": "The number of pods that are ready and the number that the job is to have.",
    },
    {
        "name": "Restarts",
        "type": "integer",
        "jsonPath": ".status.restarts.total",
        "description": "Number of restarts after failures.",
    },
    {
        "name": "Goodput",
        "type": "string",
        "jsonPath": ".status.goodput.ratio",
        "description": "Share of the time since the first step that went into useful steps.",
    },
    {
        "name": "Reason",
        "type": "string",
        "jsonPath": ".status.reason",
        "priority": 1,
        "description": "Why the job is in its state: the reason of the condition that explains it.",
    },
    {
        "name": "Updated",
        "type": "date",
        "jsonPath": ".status.progress.updatedAt",
        "description": "How long ago the operator wrote the progress of the job. If this grows although the job is "
        "Running, ranks complete no steps or no operator is there.",
    },
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]
