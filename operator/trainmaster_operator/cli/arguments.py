"""The command line: its commands, options and help. An error is one sentence, which names the command and what was
meant."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from trainmaster import __version__
from trainmaster_operator.cli.refusal import EXIT_CODE

FOLDER_OR_JOB = (
    "An existing folder is the output folder of a run on this machine; anything else, and everything when -n, "
    "--kubeconfig or --context is given, is the name of a job on a cluster"
)
FAULT_HELP = (
    "break something on purpose, once: kill, stop, slow, exit, raise, nan, oom, corrupt-checkpoint, fill-disk, "
    "lose-store, partition, kill-agent, kill-pod, lose-node, kill-operator, crash-operator or api-outage, "
    "for example kill:rank=2,step=20; may be repeated"
)


class Parser(argparse.ArgumentParser):
    """The parsers of commands that are added to it are of this class too."""

    def error(self, message: str) -> NoReturn:
        """Print the message as a sentence, without argparse's lines of usage before it, and exit with code 2."""
        hint = "" if message.endswith("?") else f"; {self.prog} --help shows what it takes"
        sys.stderr.write(f"{self.prog}: {message}{hint}\n")
        raise SystemExit(EXIT_CODE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse arguments that are left over. argparse hands those of a command to the parser above it, whose error
        names neither the command nor its options."""
        given, left = super().parse_known_args(args, namespace)
        options = [word.partition("=")[0] for word in left if word.startswith("-")]
        if options:
            known = (name for action in self._actions for name in action.option_strings)
            self.error(_unknown(options[0], known))
        if left:
            self.error(f"{left[0]} is one argument too many")
        return given, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            self.error(_unknown(str(value), map(str, action.choices)))


def _unknown(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"{word} is unknown" + (f"; did you mean {near[0]}?" if near else "")


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="trainmaster", description="Distributed training that survives its failures.")
    top.add_argument("--version", action="version", version=f"trainmaster {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run a job on this machine, or go on with it",
        description="Runs a job on this machine, or goes on with it. What rank 0 prints is shown as it comes; what all "
        "ranks print lies in DIR/logs, and `trainmaster logs DIR` shows it. Exit code 0: the job succeeded. 1: it "
        "failed. 2: it can't be run as it is. 130: it was stopped, and the same command goes on.",
    )
    run.add_argument("job", type=Path, metavar="job.yaml")
    run.add_argument("--out", type=Path, metavar="DIR", help="the run's output folder (default: runs/<job name>)")
    run.add_argument("--fault", action="append", default=[], metavar="FAULT", help=FAULT_HELP)
    run.add_argument(
        "--port", type=int, default=0, help="port of the control channel on 127.0.0.1 (default: a free one)"
    )
    run.add_argument("--plain", action="store_true", help="plain lines, as when the output is no terminal")
    run.add_argument("--quiet", action="store_true", help="don't show what rank 0 prints")
    run.add_argument("--fresh", action="store_true", help="throw away what an earlier run left in DIR")
    run.add_argument("--digests", action="store_true", help="write digests of all states after each step (slow)")
    run.add_argument(
        "--pods-as-nodes",
        action="store_true",
        help="number local ranks in each pod, as on a cluster, where a pod is a node (default: over all pods, as "
        "torchrun does on one machine)",
    )

    validate = commands.add_parser(
        "validate",
        help="say what is wrong with a job",
        description="Says everything that is wrong with a job, each problem once, and starts nothing. Exit code 0: "
        "`trainmaster run` would take it. 2: it would not.",
    )
    validate.add_argument("job", type=Path, metavar="job.yaml")
    validate.add_argument(
        "--cluster",
        action="store_true",
        help="the job is for a cluster: don't look for its folders, programs and scripts on this machine, and make a "
        "dry run of the job and of one of its pods on the cluster of the kubeconfig, if there is one; -n, --kubeconfig "
        "and --context imply it",
    )
    _cluster_options(validate)

    migrate = commands.add_parser(
        "migrate",
        help="rewrite a job with the field names of this version",
        description="Prints a job with the field names of this version, if its file was written before the first "
        "release. Changes are listed on standard error, and the file itself is not changed. Comments are lost. Exit "
        "code 0: the job was printed. 2: the file is no job.",
    )
    migrate.add_argument("job", type=Path, metavar="job.yaml")

    plan = commands.add_parser(
        "plan",
        help="list the ways that a job's ranks could share the work, best first",
        description="Lists the legal layouts of a job, with what a rank would need and send, best first. Nothing of "
        "the job's data or weights is needed. The time of a step is an estimate for this machine, whose CPU is "
        "measured once; or for another one, with --tflops and --bandwidth.",
    )
    plan.add_argument("job", type=Path, metavar="job.yaml")
    plan.add_argument("--ranks", type=int, metavar="N", help="number of ranks (default: the job's)")
    plan.add_argument(
        "--memory", metavar="SIZE", help="memory of a rank, for example 40Gi; layouts that need more come last"
    )
    plan.add_argument(
        "--tflops", type=float, metavar="X", help="10^12 operations that a rank does in a second (default: measured)"
    )
    plan.add_argument(
        "--bandwidth", type=float, metavar="X", help="10^9 bytes that a rank sends in a second (default: measured)"
    )
    plan.add_argument("--top", type=int, default=16, metavar="N", help="number of layouts to show (default: 16)")
    plan.add_argument(
        "--measure",
        type=int,
        nargs="?",
        const=3,
        default=0,
        metavar="N",
        help="train some steps of the best N, with as many processes as ranks on this machine's CPU (default of N: 3)",
    )
    plan.add_argument("--json", metavar="FILE", type=Path, help="write all of them as JSON too")

    prove = commands.add_parser(
        "prove",
        help="find out whether a job that is killed trains what an undisturbed one does",
        description="Runs a job on this machine twice, once with ranks killed in random steps, and compares the loss "
        "and every state after every step. Exit code 0: they are equal. 1: they aren't; it names the first step and "
        "the states that differ.",
    )
    prove.add_argument("job", type=Path, metavar="job.yaml")
    prove.add_argument("--kills", type=int, default=3, metavar="N", help="number of kills (default: 3)")
    prove.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed by which steps and ranks are chosen (default: another one each time)",
    )
    prove.add_argument(
        "--tolerance", type=float, default=0.0, metavar="X", help="compare losses only; they may differ by X"
    )
    prove.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder of both runs (default: runs/prove-<job name>)"
    )
    prove.add_argument("--plain", action="store_true", help="plain lines, as when the output is no terminal")

    parity = commands.add_parser(
        "parity",
        help="train a small model in each parallel way, and compare it with one process",
        description="Trains a small model in each parallel way and in one process, on this machine, and compares "
        "losses and parameters. Exit code 0: all rows are within the tolerance. 1: some aren't.",
    )
    parity.add_argument(
        "--only", metavar="PATTERN", action="append", default=[], help="rows whose name holds this; may be repeated"
    )
    parity.add_argument("--list", action="store_true", help="list the rows and train nothing")
    parity.add_argument("--json", metavar="FILE", type=Path, help="write the table as JSON too")
    parity.add_argument("--page", metavar="FILE", type=Path, help="write the table as a page too")

    export = commands.add_parser(
        "export",
        help="write a Llama's checkpoint as a folder that Hugging Face's transformers loads",
        description="Writes config.json and safetensors files. The checkpoint may be of any layout.",
    )
    export.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="folder of a checkpoint, or a folder of checkpoints, of which the newest is taken",
    )
    export.add_argument("out", type=Path, metavar="OUT_DIR", help="an empty or a new folder")
    export.add_argument(
        "--file-gb", type=float, default=5.0, metavar="N", help="maximum size of a file in GB (default: 5)"
    )

    import_ = commands.add_parser(
        "import",
        help="write a Llama of Hugging Face's transformers as a checkpoint that a job starts from",
        description="Reads config.json and safetensors files, and says what to write into the job.",
    )
    import_.add_argument("folder", type=Path, metavar="HF_DIR", help="folder with config.json and model.safetensors")
    import_.add_argument("out", type=Path, metavar="CHECKPOINT_DIR", help="an empty or a new folder")

    tokenize = commands.add_parser(
        "tokenize",
        help="write texts as a file of token numbers, which the data source `tokens` reads",
        description="Reads text files, or a column of .parquet, .arrow (datasets of Hugging Face's) or .jsonl files.",
    )
    tokenize.add_argument("source", type=Path, metavar="SOURCE", help="a file, or a folder of files")
    tokenize.add_argument("out", type=Path, metavar="OUT.npy", help="file to write")
    tokenize.add_argument("--tokenizer", type=Path, metavar="FILE", required=True, help="a tokenizer.json")
    tokenize.add_argument(
        "--column", metavar="NAME", default="text", help="column of a table that holds the text (default: text)"
    )
    tokenize.add_argument("--glob", metavar="PATTERN", help="which files of the folder, such as '**/*.md'")
    tokenize.add_argument(
        "--separator",
        metavar="TOKEN",
        help="token that ends a document (default: the tokenizer's own, if it has a usual one)",
    )

    demo = commands.add_parser("demo", help="train a small GPT over four ranks, kill one, and lose nothing")
    demo.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("runs/demo"),
        help="output folder of the run (default: runs/demo)",
    )
    demo.add_argument(
        "--port",
        type=int,
        default=0,
        help="port of the control channel and of /metrics on 127.0.0.1 (default: a free one)",
    )
    demo.add_argument("--plain", action="store_true", help="plain lines, as when the output is no terminal")

    report = commands.add_parser("report", help="make a run's report.html again")
    report.add_argument("out", type=Path, metavar="DIR", help="the run's output folder")

    status = commands.add_parser(
        "status",
        help="how a run on this machine or a job on a cluster stands",
        description=f"How a run or a job stands. {FOLDER_OR_JOB}.",
    )
    status.add_argument("what", metavar="DIR|NAME", help="a run's output folder, or a job's name")
    _cluster_options(status)

    submit = commands.add_parser(
        "submit",
        help="hand a job to a cluster",
        description="Makes a dry run of the job and of one of its pods on the cluster, and then creates the job. Exit "
        "code 2: the cluster would refuse one of them, and nothing was created.",
    )
    submit.add_argument("job", type=Path, metavar="job.yaml")
    submit.add_argument("--watch", action="store_true", help="show how it goes; exit 0 only when it succeeds")
    submit.add_argument("--plain", action="store_true", help="plain lines, as when the output is no terminal")
    _cluster_options(submit)

    watch = commands.add_parser("watch", help="show a job on a cluster as it goes; exit 0 only when it succeeds")
    watch.add_argument("name", metavar="NAME")
    watch.add_argument("--plain", action="store_true", help="plain lines, as when the output is no terminal")
    _cluster_options(watch)

    logs = commands.add_parser(
        "logs",
        help="what the ranks of a run on this machine or of a job on a cluster print",
        description=f"What ranks print. {FOLDER_OR_JOB}.",
    )
    logs.add_argument("what", metavar="DIR|NAME", help="a run's output folder, or a job's name")
    which = logs.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="R", help="show what this rank prints (default: 0)")
    which.add_argument(
        "--all",
        action="store_true",
        help="show what all ranks print: on a cluster in the order of time, on this machine pod after pod",
    )
    logs.add_argument("-f", "--follow", action="store_true", help="go on to show lines until the job has ended")
    _cluster_options(logs)

    fault = commands.add_parser(
        "fault",
        help="break something of a job on a cluster, on purpose",
        description="Breaks something of a job on a cluster. You need the right to pods/exec for what ranks and agents "
        "do, and the right to delete pods for the others. Without a step it happens now.",
    )
    fault.add_argument("name", metavar="NAME")
    fault.add_argument("faults", nargs="+", metavar="FAULT", help="as with run --fault, for example kill:rank=2")
    _cluster_options(fault)

    profile = commands.add_parser(
        "profile",
        help="record the next steps of a run on this machine or of a job on a cluster, for a timeline",
        description="All ranks record the same next steps, and rank 0 makes one page of them. "
        f"{FOLDER_OR_JOB}, where it needs the right to pods/exec.",
    )
    profile.add_argument("what", metavar="DIR|NAME", help="a run's output folder, or a job's name")
    profile.add_argument(
        "--steps", type=int, default=3, metavar="N", help="number of steps to record (default: 3, at most 100)"
    )
    _cluster_options(profile)

    restart = commands.add_parser(
        "restart",
        help="restart a job on a cluster, so that changes of its spec take effect",
        description="All ranks save and stop. Then the job continues in new pods, with its current spec and the "
        "operator's current images. A suspended job is not restarted: changes take effect when it is resumed.",
    )
    restart.add_argument("name", metavar="NAME")
    _cluster_options(restart)

    delete = commands.add_parser("delete", help="delete a job on a cluster; its checkpoints stay")
    delete.add_argument("name", metavar="NAME")
    _cluster_options(delete)
    return top


def _cluster_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which cluster")
    group.add_argument("-n", "--namespace", metavar="NS", help="namespace of the job (default: the context's)")
    group.add_argument(
        "--kubeconfig", metavar="FILE", help="file that names the cluster (default: KUBECONFIG, else ~/.kube/config)"
    )
    group.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
