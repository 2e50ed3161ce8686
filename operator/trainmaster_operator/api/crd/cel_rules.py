"""CEL rules of the CRD: what an API server refuses across fields of a job, and the sentence that it says.

They repeat what the models' validators say, so that a bad manifest is refused even while the operator is down.
"""

from __future__ import annotations

from trainmaster_operator.api.recovery_rules import NEEDS_ANOTHER_POD
from trainmaster_operator.api.validation import unused_options

_POD = "self.workers.template.spec"
_NO_POD = f"!has(self.workers.template) || !has({_POD})"
_VOLUME = "self.checkpoint.volume"
_MESH = "self.training.parallelism"
_BATCH = "self.training.batch"
_WORLD = "self.workers.replicas * self.workers.ranksPerPod"
_INNER = " * ".join(f"(has({_MESH}.{axis}) ? {_MESH}.{axis} : 1)" for axis in ("pp", "cp", "tp"))
_DATA = f"({_WORLD}) / ({_INNER})"
"""Number of data-parallel ranks as a CEL expression. Each of them has its own share of the batch."""
_SHARDS = (
    f"(has({_MESH}.dpShard) ? {_MESH}.dpShard : has({_MESH}.dpReplicate) ? {_DATA} / {_MESH}.dpReplicate : 1)"
    f" * (has({_MESH}.cp) ? {_MESH}.cp : 1)"
)
_ELASTIC = "has(self.workers.min) || has(self.workers.max)"
_SAVES = "has(self.checkpoint.volume) || has(self.checkpoint.directory)"

SPEC_RULES = [
    {
        "rule": "self.framework == oldSelf.framework",
        "message": "framework can't be changed: create another job",
    },
    {
        "rule": "has(self.managedBy) == has(oldSelf.managedBy)"
        " && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
        "message": "managedBy can't be changed: create another job",
    },
    {
        "rule": "self.framework != 'Trainmaster' || has(self.training)",
        "message": "framework Trainmaster needs spec.training",
    },
    {
        "rule": "self.framework == 'Trainmaster' || !has(self.training)",
        "message": "spec.training belongs to framework Trainmaster only",
    },
    {
        "rule": "self.framework != 'Trainmaster' || !has(self.workers.restartCommand)",
        "message": "workers.restartCommand belongs to scripts: framework Trainmaster continues from its checkpoints",
    },
    {
        "rule": f"self.framework != 'Trainmaster' || {_NO_POD} || !has({_POD}.containers)"
        f" || {_POD}.containers.size() == 0"
        f" || !(has({_POD}.containers[0].command) || has({_POD}.containers[0].args))",
        "message": "framework Trainmaster runs its own trainer: leave out command and args of"
        " workers.template.spec.containers[0]",
    },
    {
        "rule": f"self.framework == 'Trainmaster' || (!({_NO_POD}) && has({_POD}.containers)"
        f" && {_POD}.containers.size() > 0"
        f" && (has({_POD}.containers[0].command) || has({_POD}.containers[0].args)))",
        "message": "every framework but Trainmaster needs workers.template.spec.containers[0].command,"
        " for example [python, train.py]",
    },
    {
        "rule": f"{_NO_POD} || !has({_POD}.restartPolicy) || {_POD}.restartPolicy == 'Never'",
        "message": "workers.template.spec.restartPolicy is Never or left out",
    },
    {
        "rule": f"{_NO_POD} || !has({_POD}.hostname)",
        "message": "workers.template.spec.hostname is set by the operator: leave it out",
    },
    {
        "rule": f"{_NO_POD} || !has({_POD}.subdomain)",
        "message": "workers.template.spec.subdomain is set by the operator: leave it out",
    },
    {
        "rule": "oldSelf.suspend || self.workers.replicas == oldSelf.workers.replicas"
        f" || (self.framework == 'Trainmaster' ? {_SAVES} : {_ELASTIC})",
        "message": "workers.replicas can be changed only while the job is suspended, unless the job has a place for"
        " checkpoints or, if it runs a script, workers.min or workers.max",
    },
    {
        "rule": "!has(self.workers.min) || self.workers.min <= self.workers.replicas",
        "message": "workers.replicas must be at least workers.min",
    },
    {
        "rule": "!has(self.workers.max) || self.workers.replicas <= self.workers.max",
        "message": "workers.replicas must be at most workers.max",
    },
    {
        "rule": "self.workers.replicas + self.workers.spares <= 100000",
        "message": "workers.replicas and workers.spares are more than 100000 pods",
    },
    {
        "rule": "oldSelf.suspend || !has(self.training) || !has(oldSelf.training)"
        f" || ({_MESH} == oldSelf.training.parallelism && self.training.batch == oldSelf.training.batch)",
        "message": "training.parallelism and training.batch can be changed only while the job is suspended",
    },
    {
        "rule": "oldSelf.suspend || self.workers.ranksPerPod == oldSelf.workers.ranksPerPod",
        "message": "workers.ranksPerPod can be changed only while the job is suspended",
    },
    {
        "rule": f"!has({_VOLUME}) || has({_VOLUME}.claim) != has({_VOLUME}.hostPath)",
        "message": "checkpoint.volume: exactly one of claim and hostPath is expected",
    },
    {
        "rule": f"!has({_VOLUME}) || !has(self.checkpoint.directory) || self.checkpoint.directory.startsWith('/')",
        "message": "checkpoint.directory must be an absolute path to mount a volume",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || ({_WORLD}) % ({_INNER}) == 0",
        "message": "training.parallelism: pp x cp x tp must divide workers.replicas x workers.ranksPerPod",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || !has({_MESH}.dpReplicate) || !has({_MESH}.dpShard)"
        f" || {_MESH}.dpReplicate * {_MESH}.dpShard * {_INNER} == {_WORLD}",
        "message": "training.parallelism: dpReplicate x dpShard x pp x cp x tp must be workers.replicas x"
        " workers.ranksPerPod",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || !has({_MESH}.dpReplicate) || has({_MESH}.dpShard)"
        f" || ({_DATA}) % {_MESH}.dpReplicate == 0",
        "message": "training.parallelism: dpReplicate must divide workers.replicas x workers.ranksPerPod /"
        " (pp x cp x tp)",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || !has({_MESH}.dpShard) || has({_MESH}.dpReplicate)"
        f" || ({_DATA}) % {_MESH}.dpShard == 0",
        "message": "training.parallelism: dpShard must divide workers.replicas x workers.ranksPerPod / (pp x cp x tp)",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || !has({_MESH}.ep) || ({_WORLD}) % ({_INNER}) != 0"
        f" || ({_SHARDS}) % {_MESH}.ep == 0",
        "message": "training.parallelism: ep must divide dpShard x cp",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || {_DATA} < 1 || has({_BATCH}.scaling)"
        f" || {_BATCH}.global % ({_DATA}) == 0",
        "message": "training.batch.global must be a multiple of workers.replicas x workers.ranksPerPod /"
        " (pp x cp x tp)",
    },
    {
        "rule": f"{_ELASTIC} || !has(self.training) || !has({_BATCH}.micro) || {_DATA} < 1 || {_BATCH}.global"
        f" % ((has({_BATCH}.scaling) ? {_BATCH}.scaling.ranks / ({_INNER}) : {_DATA}) * {_BATCH}.micro) == 0",
        "message": "training.batch.micro must divide each rank's share of training.batch.global",
    },
    {
        "rule": f"!has(self.training) || !has({_BATCH}.scaling) || {_BATCH}.global % {_BATCH}.scaling.ranks == 0",
        "message": "training.batch.global must be a multiple of training.batch.scaling.ranks",
    },
    {
        "rule": "!has(self.training) || self.training.optimizer.warmupSteps < self.training.steps",
        "message": "training.optimizer.warmupSteps must be lower than training.steps",
    },
    {
        "rule": "!has(self.training) || !self.checkpoint.keepBest || has(self.training.evaluation)",
        "message": "checkpoint.keepBest: the best checkpoint is known by its evaluation loss;"
        " training.evaluation is missing",
    },
    *unused_options.CEL_RULES,
]

_RULES = "self.recovery.rules"
SPEC_RULES += [
    {
        "rule": f"self.framework == 'Trainmaster' || !has({_RULES}) || {_RULES}.all(r, r.action != 'SkipData')",
        "message": "recovery.rules: SkipData needs framework Trainmaster, because the samples of a script are not "
        "known",
    },
    {
        "rule": f"has(self.workers.min) || !has({_RULES}) || {_RULES}.all(r, r.action != 'Shrink')",
        "message": "recovery.rules: Shrink needs workers.min, the smallest number of pods with which the job continues",
    },
]

RULE_RULES = [
    {
        "rule": "self.action != 'SkipData' || (has(self.causes) && self.causes == ['Diverged'])",
        "message": "SkipData needs causes: [Diverged], because only for this cause the samples to skip are known",
    },
    {
        "rule": "self.action != 'RestartInPlace' || !has(self.causes)"
        f" || !self.causes.exists(c, c in {list(NEEDS_ANOTHER_POD)})",
        "message": "RestartInPlace cannot recover from a cause that needs another pod; use ReplacePod",
    },
]
