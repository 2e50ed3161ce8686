"""What to do with each metric of the whole operator, for docs/metrics.md. The metrics of single jobs are in
job_metric_table.py."""

from __future__ import annotations

from collections.abc import Mapping

ADVICE: Mapping[str, str] = {
    "trainmaster_agents_connected": "Compare it with trainmaster_pods: agents that do not connect are starting, or "
    "cut off.",
    "trainmaster_agents_lost_total": "Many at once: a network or a zone has failed; status.recoveries names the pods.",
    "trainmaster_api_call_seconds": "Above a second the API server is slow, and recoveries wait for it.",
    "trainmaster_api_calls_total": "Alert on code 0 or 5xx; 403 means that the operator's roles are too narrow.",
    "trainmaster_api_writes_total": "A rise of progress writes loads the API server; intents follow failures.",
    "trainmaster_certificate_expiry_timestamp_seconds": "Alert when less than 7 days are left: renewal has stopped.",
    "trainmaster_channel_requests_total": "unauthorized or bad: a program other than an agent calls "
    "the control channel, or a clock is wrong.",
    "trainmaster_checkpoint_failures_total": "Alert on any increase: storage is full or does not answer. "
    "Events name the job.",
    "trainmaster_crd_fields_missing": "Alert above 0: upgrade the chart with crds.enabled=true.",
    "trainmaster_crd_fields_unknown": "Alert above 0: the operator is older than the definition of jobs.",
    "trainmaster_event_loop_lag_seconds": "Above 0.5 the operator lacks CPU: raise its request.",
    "trainmaster_events_total": "dropped: one job has too many events; failed: the API server refuses Events, and "
    "the operator's log has them.",
    "trainmaster_hang_suspicions_total": "raised and dropped again and again: docs/hangs.md says how limits are set.",
    "trainmaster_jobs": "An overview of the fleet; Unreadable jobs come from a newer version.",
    "trainmaster_jobs_failing_api_calls": "Above 0 for minutes: events and conditions of the jobs have the server's "
    "words; the log has them also where neither can be written.",
    "trainmaster_leader": "Alert when the sum in a namespace is 0: nothing recovers.",
    "trainmaster_leader_epoch": "A rise is a change of leader; many in an hour mean an unstable operator.",
    "trainmaster_lost_seconds_total": "Its largest cause is what costs the fleet most.",
    "trainmaster_lost_steps_total": "If it grows fast, jobs save too seldom.",
    "trainmaster_pods": "The number of pods that the operator looks after.",
    "trainmaster_queue_depth": "If it does not fall back to 0, the operator lacks CPU or the API server is slow.",
    "trainmaster_queue_wait_seconds": "Alert when its 0.99 quantile is above a second.",
    "trainmaster_reconcile_seconds": "If it grows with the number of jobs, the operator lacks CPU: raise its request.",
    "trainmaster_reconcile_total": "Alert on result error: the job has the condition ReconcileError.",
    "trainmaster_recovery_decide_seconds": "Usually milliseconds; more means that the operator was busy.",
    "trainmaster_recovery_seconds": "The phase with most seconds is the one to make faster.",
    "trainmaster_restarts_total": "A cause that many jobs share is hardly their own fault.",
    "trainmaster_stragglers_total": "See trainmaster_job_straggler_slowdown for the jobs that have one now.",
    "trainmaster_useful_seconds_total": "With trainmaster_lost_seconds_total it gives the goodput of the fleet.",
    "trainmaster_watch_age_seconds": "Alert above 180: the operator receives nothing from the API server any more.",
}
