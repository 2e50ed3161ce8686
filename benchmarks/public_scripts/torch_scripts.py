"""Scripts of PyTorch's own examples, nanoGPT and torchtitan."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.public_scripts import data
from benchmarks.public_scripts.scripts import Change, Lines, PublicScript, Weights

_EXAMPLES = ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
_NO_GPUS = "it ends at once on a machine without two GPUs"
_CPU = "it takes a GPU for each rank"
_SEED = "it sets no seed, so no two runs of it end alike"
_FROM_THE_START = "It saves nothing before its end, so a killed run starts again from the beginning."


def _without_gpus(file: str) -> Change:
    return Change(file, "if not verify_min_gpu_count(min_gpus=_min_gpu_count):", "if False:", _NO_GPUS)


def _on_cpu(file: str, *texts: tuple[str, str]) -> tuple[Change, ...]:
    return tuple(Change(file, old, new, _CPU) for old, new in texts)


def _tensor_parallel(name: str, file: str, ranks: int, said: str, *more: Change) -> PublicScript:
    return PublicScript(
        name,
        *_EXAMPLES,
        folder="distributed/tensor_parallelism",
        words=(file,),
        end=Lines(said),
        ranks=ranks,
        changes=(
            _without_gpus(file),
            *_on_cpu(file, ("torch.accelerator.current_accelerator().type", '"cpu"')),
            *more,
        ),
        kill_step=5,
        why=f"{_FROM_THE_START} It prints no losses, so the runs are compared by its message that it has completed.",
    )


def _prepare_shakespeare(folder: Path) -> None:
    """Characters of a text, by the script that nanoGPT has for it."""
    data.text(folder, "data/shakespeare_char/input.txt", 400)
    subprocess.run(
        [sys.executable, "prepare.py"], cwd=folder / "data/shakespeare_char", check=True, stdout=subprocess.DEVNULL
    )


SCRIPTS = (
    PublicScript(
        "DDP example",
        *_EXAMPLES,
        folder="distributed/ddp",
        words=("example.py",),
        end=Lines(r"training completed in rank \d", 2, sort=True),
        changes=(
            _without_gpus("example.py"),
            *_on_cpu(
                "example.py",
                ("acc = torch.accelerator.current_accelerator()", 'acc = torch.device("cpu")'),
                ("torch.accelerator.set_device_index(rank)", "pass"),
                (".to(rank)", '.to("cpu")'),
                ("DDP(model, device_ids=[rank])", "DDP(model)"),
            ),
        ),
        kill_step=1,
        why=(
            f"{_FROM_THE_START} It prints no losses, so the runs are compared by the messages of both ranks that they "
            "have completed."
        ),
    ),
    PublicScript(
        "DDP tutorial, snapshots",
        *_EXAMPLES,
        folder="distributed/ddp-tutorial-series",
        words=("multigpu_torchrun.py", "6", "1", "--batch_size", "64"),
        end=Weights("snapshot.pt", "MODEL_STATE"),
        changes=(
            *_on_cpu(
                "multigpu_torchrun.py",
                ('    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n', ""),
                ('backend="nccl"', 'backend="gloo"'),
                (".to(self.gpu_id)", '.to("cpu")'),
                ('f"cuda:{self.gpu_id}"', '"cpu"'),
                ("DDP(self.model, device_ids=[self.gpu_id])", "DDP(self.model)"),
            ),
            Change(
                "multigpu_torchrun.py",
                "    dataset, model, optimizer = load",
                "    torch.manual_seed(0)\n    dataset, model, optimizer = load",
                _SEED,
            ),
        ),
        kill_step=40,
        pace_s=0.2,
        why="It repeats the epoch after which the snapshot was saved; its loss has no gradient, so its weights stay.",
    ),
    PublicScript(
        "minGPT-ddp",
        *_EXAMPLES,
        folder="distributed/minGPT-ddp/mingpt",
        words=(
            *("main.py", "data_config.path=data/input.txt", "data_config.truncate=0.0016", "data_config.block_size=32"),
            *("gpt_config.n_layer=1", "gpt_config.n_head=2", "gpt_config.n_embd=32"),
            *("+gpt_config.embd_pdrop=0.0", "+gpt_config.resid_pdrop=0.0", "+gpt_config.attn_pdrop=0.0"),
            *("trainer_config.max_epochs=4", "trainer_config.batch_size=64", "trainer_config.data_loader_workers=0"),
            *("trainer_config.save_every=1", "trainer_config.use_amp=False"),
        ),
        end=Weights("gpt_snapshot.pt", "model_state"),
        changes=(
            _without_gpus("main.py"),
            *_on_cpu(
                "main.py",
                ("acc = torch.accelerator.current_accelerator()", 'acc = "cpu"'),
                ("    torch.accelerator.set_device_index(rank)\n", ""),
            ),
            *_on_cpu(
                "trainer.py",
                ("torch.accelerator.current_accelerator()", '"cpu"'),
                (".to(self.local_rank)", ".to(self.device_type)"),
                ("DDP(self.model, device_ids=[self.local_rank])", "DDP(self.model)"),
            ),
            Change(
                "main.py", "    dataset = CharDataset", "    torch.manual_seed(0)\n    dataset = CharDataset", _SEED
            ),
        ),
        kill_step=30,
        pace_s=0.3,
    ),
    PublicScript(
        "FSDP2",
        *_EXAMPLES,
        folder="distributed/FSDP2",
        words=("example.py",),
        end=Weights("checkpoints/dtensor_api/*/model_state_dict.pt"),
        changes=(
            _without_gpus("example.py"),
            Change("example.py", ", device_id=device", "", "CPU has no numbered devices"),
            Change(
                "model.py",
                "        self.output.reset_parameters()\n",
                "        self.output.reset_parameters()\n        for layer in self.layers:\n"
                "            layer.reset_parameters()\n",
                "it leaves the weights of its layers uninitialised, so no two runs of it need end alike",
            ),
        ),
        kill_step=6,
        pace_s=1.5,
        why=_FROM_THE_START,
    ),
    _tensor_parallel("tensor parallel", "tensor_parallel_example.py", 2, "Tensor Parallel training completed!"),
    _tensor_parallel("sequence parallel", "sequence_parallel_example.py", 2, "Sequence Parallel training completed!"),
    _tensor_parallel(
        "FSDP2 and tensor parallel",
        "fsdp_tp_example.py",
        4,
        "2D training successfully completed!",
        Change(
            "llama2_model.py",
            "        output = F.scaled_dot_product_attention(xq, xk, xv, is_causal=True)\n",
            "        local = (each.to_local() for each in (xq, xk, xv))\n"
            "        output = F.scaled_dot_product_attention(*local, is_causal=True)\n"
            "        output = type(xq).from_local(output, xq.device_mesh, xq.placements)\n",
            "this torch has no sharding strategy for the CPU's flash attention",
        ),
    ),
    PublicScript(
        "imagenet",
        *_EXAMPLES,
        folder="imagenet",
        words=(
            *("main.py", "data", "--no-accel", "-a", "shufflenet_v2_x0_5", "-j", "0", "-b", "4", "--epochs", "4"),
            *("--seed", "1", "-p", "1", "--dist-url", "env://", "--dist-backend", "gloo"),
            *("--resume", "checkpoint.pth.tar"),
        ),
        end=Lines(r" \* +Acc@1 .*"),
        prepare=partial(data.image_folders, path="data", each=8),
        kill_step=5,
        pace_s=1.5,
        why="Both ranks save to one file, and random crops are drawn from a new seed after a restart.",
    ),
    PublicScript(
        "mnist",
        *_EXAMPLES,
        folder="mnist",
        words=(
            *("main.py", "--no-accel", "--epochs", "2", "--batch-size", "32", "--test-batch-size", "64"),
            *("--save-model", "--log-interval", "1"),
        ),
        end=Weights("mnist_cnn.pt"),
        ranks=1,
        prepare=partial(data.mnist, path="../data", train=512, test=64),
        victim=0,
        kill_step=20,
        pace_s=0.2,
        why=_FROM_THE_START,
    ),
    PublicScript(
        "RPC parameter server",
        *_EXAMPLES,
        folder="distributed/rpc/batch",
        words=("parameter_server.py",),
        end=Lines("Finish training"),
        ranks=1,
        changes=(Change("parameter_server.py", ".cuda()", "", _CPU),),
        victim=None,
        kill_step=3,
        why=f"{_FROM_THE_START} It prints no losses, so the runs are compared by its message that it has finished.",
    ),
    PublicScript(
        "nanoGPT",
        "karpathy/nanoGPT",
        "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        folder=".",
        words=(
            *("train.py", "config/train_shakespeare_char.py", "--device=cpu", "--backend=gloo", "--compile=False"),
            *("--dtype=float32", "--eval_iters=2", "--eval_interval=20", "--log_interval=1", "--block_size=32"),
            *("--batch_size=4", "--n_layer=2", "--n_head=2", "--n_embd=32", "--max_iters=60", "--lr_decay_iters=60"),
            *("--dropout=0.0", "--gradient_accumulation_steps=2", "--always_save_checkpoint=True"),
        ),
        end=Weights("out-shakespeare-char/ckpt.pt", "model"),
        changes=_on_cpu(
            "train.py",
            ("device = f'cuda:{ddp_local_rank}'", "device = 'cpu'"),
            ("    torch.cuda.set_device(device)\n", ""),
            ("DDP(model, device_ids=[ddp_local_rank])", "DDP(model)"),
        ),
        prepare=_prepare_shakespeare,
        restart=("--init_from=resume",),
        kill_step=35,
        pace_s=0.3,
        why="It sets the same seed again when it resumes, so it reads other samples than a calm run.",
    ),
)
