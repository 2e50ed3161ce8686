"""Tables of launchers' options, which find the script behind the options without the launcher's own parser.

An option that is in no table is refused by name, because it is not known whether a value follows it, and so where the
script begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmaster.contract.launch import horovodrun_options
from trainmaster.contract.launch.launch_errors import LaunchRefused
from trainmaster.contract.launch.launchers import ACCELERATE, DEEPSPEED, HOROVODRUN, TORCH_LAUNCH, Launcher


class UnknownOption(LaunchRefused):
    """An option of a launcher that is in no table. The launcher's own parser, if it is installed, may know it."""

    def __init__(self, launcher: str, option: str) -> None:
        super().__init__(
            f"{launcher}: the option {option} is not known, so it is not clear where the script begins; leave it out, "
            f"or start the script by [python, SCRIPT]"
        )
        self.option = option


@dataclass(frozen=True)
class Launch:
    """What a launcher would start in each process, and the options that it was given."""

    kind: str  # script, module or program
    name: str  # path of the script or program, or name of the module
    args: list[str]
    given: dict[str, str] = field(default_factory=dict)  # options as written, by name with underscores; "" for a flag
    environment: dict[str, str] = field(default_factory=dict)  # variables that the launcher sets for its script


_TORCH_FLAGS = "standalone module no_python run_path virtual_local_rank help"
_TORCH_VALUES = """
    nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf max_restarts monitor_interval start_method
    event_log_handler role log_dir redirects tee log_line_prefix_template local_ranks_filter
    duplicate_stdout_filters duplicate_stderr_filters node_rank master_addr master_port local_addr logs_specs
    numa_binding signals_to_handle shutdown_timeout print_completion
"""
_TORCH_SHORT = {"m": "module", "r": "redirects", "t": "tee", "h": "help"}
_ACCELERATE_FLAGS = """
    help quiet cpu multi_gpu tpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic
    dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config use_megatron_lm same_network
    module no_python tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16 fp8_use_autocast_during_eval debug
"""
_ACCELERATE_VALUES = """
    config_file mixed_precision num_processes num_machines num_cpu_threads_per_process dynamo_backend dynamo_mode
    gpu_ids machine_rank main_process_ip main_process_port tee log_dir role rdzv_backend rdzv_conf max_restarts
    monitor_interval vm env main_training_function deepspeed_config_file zero_stage offload_optimizer_device
    offload_param_device offload_optimizer_nvme_path offload_param_nvme_path gradient_accumulation_steps
    gradient_clipping zero3_init_flag zero3_save_16bit_model deepspeed_hostfile deepspeed_exclusion_filter
    deepspeed_inclusion_filter deepspeed_multinode_launcher deepspeed_moe_layer_cls_names fsdp_version
    fsdp_offload_params fsdp_min_num_params fsdp_sharding_strategy fsdp_reshard_after_forward fsdp_auto_wrap_policy
    fsdp_transformer_layer_cls_to_wrap fsdp_backward_prefetch fsdp_state_dict_type fsdp_forward_prefetch
    fsdp_use_orig_params fsdp_cpu_ram_efficient_loading fsdp_sync_module_states fsdp_activation_checkpointing
    fsdp_activation_checkpointing_offload megatron_lm_tp_degree megatron_lm_pp_degree megatron_lm_num_micro_batches
    megatron_lm_sequence_parallelism megatron_lm_recompute_activations megatron_lm_use_distributed_optimizer
    megatron_lm_gradient_clipping fp8_backend fp8_margin fp8_interval fp8_format fp8_amax_history_len
    fp8_amax_compute_algo fp8_opt_level fp8_enable_fsdp_float8_all_gather fp8_pad_inner_dim aws_access_key_id
    aws_secret_access_key mpirun_hostfile mpirun_ccl parallelism_config_dp_replicate_size
    parallelism_config_dp_shard_size parallelism_config_tp_size parallelism_config_cp_size
    parallelism_config_cp_backend parallelism_config_cp_comm_strategy parallelism_config_sp_size
    parallelism_config_sp_backend parallelism_config_sp_seq_length parallelism_config_sp_seq_length_is_variable
    parallelism_config_sp_attn_implementation
"""
_DEEPSPEED_FLAGS = """
    module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid elastic_training bind_cores_to_rank quiet
    help
"""
_DEEPSPEED_VALUES = """
    hostfile include exclude num_nodes num_gpus num_accelerators min_elastic_nodes max_elastic_nodes master_port
    master_addr node_rank launcher launcher_args enable_each_rank_log autotuning bind_core_list ssh_port venv_script
    log_level
"""
_DEEPSPEED_SHORT = {"H": "hostfile", "i": "include", "e": "exclude", "q": "quiet", "h": "help"}
_ACCELERATE_SHORT = {"m": "module", "q": "quiet", "t": "tee", "h": "help"}


def read_by_tables(launcher: Launcher) -> Launch:
    """Return what the launcher would start. Raises UnknownOption for an option that is in no table."""
    if launcher.kind == ACCELERATE:
        flags, values, short = _ACCELERATE_FLAGS.split(), _ACCELERATE_VALUES.split(), _ACCELERATE_SHORT
    elif launcher.kind == DEEPSPEED:
        flags, values, short = _DEEPSPEED_FLAGS.split(), _DEEPSPEED_VALUES.split(), _DEEPSPEED_SHORT
    elif launcher.kind == HOROVODRUN:
        flags, values, short = [*horovodrun_options.FLAGS], [*horovodrun_options.VALUES], horovodrun_options.SHORT
    else:
        flags, values, short = _TORCH_FLAGS.split(), _TORCH_VALUES.split(), _TORCH_SHORT
        if launcher.kind == TORCH_LAUNCH:
            flags.append("use_env")
    given: dict[str, str] = {}
    rest = list(launcher.options)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        option, equals, value = word.partition("=")
        whole = option.startswith("--") or option[1:] in short
        written = option[1:] if whole else option[1:2]
        name = option[2:].replace("-", "_") if option.startswith("--") else short.get(written, "")
        if not whole and name in values:
            equals, value = "=", word[2:]  # -r3
        if name in flags and not equals and whole:
            given[name] = ""
        elif name in values and (equals or rest):
            value = value if equals else rest.pop(0)
            given[name] = f"{given[name]},{value}" if name in given and name in horovodrun_options.APPENDED else value
        else:
            raise UnknownOption(launcher.kind, option)
    if not rest:
        raise LaunchRefused(f"{launcher.kind}: no script follows its options")
    if launcher.kind == HOROVODRUN:
        return Launch("program", rest[0], rest[1:], given, horovodrun_options.variables(given))
    kind = "program" if "no_python" in given else "module" if "module" in given else "script"
    if "no_python" in given and "module" in given:
        raise LaunchRefused(f"{launcher.kind}: --no-python and --module exclude each other: leave one out")
    args = rest[1:]
    if launcher.kind == TORCH_LAUNCH and "use_env" not in given:
        if kind == "program":
            raise LaunchRefused(f"{launcher.kind}: --no-python needs --use-env beside it")
        args = [LOCAL_RANK_OPTION, *args]
    if launcher.kind == DEEPSPEED and "no_local_rank" not in given:
        args = [DEEPSPEED_LOCAL_RANK_OPTION, *args]
    return Launch(kind, rest[0], args, given)


LOCAL_RANK = "${local_rank}"
"""The text in arguments that torch's launchers replace by the number of a process in its pod."""
LOCAL_RANK_OPTION = f"--local-rank={LOCAL_RANK}"
DEEPSPEED_LOCAL_RANK_OPTION = f"--local_rank={LOCAL_RANK}"
