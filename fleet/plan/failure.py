"""The cause of a failure, with advice for the operator, and its effect on the record. Pure."""

import datetime as dt
import re
from collections.abc import Sequence

from fleet.models import Changes, Instance
from fleet.plan.state import backoff_s

_ERROR = re.compile(r"(^|\s)\w*(Error|Exception): ")
_GENERAL = re.compile(r"Engine core initialization failed")


# Known log messages of failing engines, each with its cause and the remedy. The messages are those of vLLM 0.32, NIXL
# 1.5, Mooncake 0.3, PyTorch, Hugging Face and the kernel.
_KNOWN = (
    (
        r"larger than the available KV cache memory|No available memory for the cache blocks",
        "its KV cache is too small for the longest request: give it more memory, or lower max_model_len",
    ),
    (
        r"Free memory on device .*(less than|Desired GPU memory)|less than desired GPU memory utilization",
        "another process uses the GPU: free it, or lower gpu_memory_utilization",
    ),
    (
        r"on kv cache allocation is less than requested memory|DefaultCPUAllocator: can't allocate",
        "the host has too little memory: lower cpu_kv_gib, or free some",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|HIP out of memory",
        "the GPU has too little memory: lower max_num_seqs or max_model_len, or use more GPUs",
    ),
    (
        r"User-specified max_model_len .* is greater",
        "max_model_len exceeds the limit of the model: lower it",
    ),
    (
        r"must be divisible by tensor parallel size|tensor.parallel.size .* (exceeds|larger)|World size .* is larger",
        "tensor_parallel does not fit the model or the GPUs: choose a divisor of its attention heads",
    ),
    (
        r"gated repo|401 Client Error|403 Client Error|RepositoryNotFoundError",
        "this account may not read the model: set HF_TOKEN in engine.environment, or name a local folder",
    ),
    (
        r"not a valid model identifier|does not appear to have a file named|Repo id must|HFValidation"
        r"|Cannot find any model weights|Invalid repository ID or local directory|Can't load the configuration of",
        "the model was not found: correct engine.model",
    ),
    (
        r"couldn't connect to 'https?://\S+' to load|Cannot reach https?://|LocalEntryNotFoundError|MaxRetryError.*hugg",
        "the model could not be downloaded: check the network, or name a local folder in engine.model",
    ),
    (
        r"trust_remote_code=True|contains custom code which must be executed",
        "the model contains its own code: review it, then add --trust-remote-code to engine.arguments",
    ),
    (
        r"Model architectures .* are not supported|Model architectures .* failed to be inspected",
        "this build does not support the model: use a newer vLLM or another model",
    ),
    (
        r"Error while deserializing header|InvalidHeader|SafetensorError|incomplete metadata",
        "the model's files are broken: download them again",
    ),
    (
        r"Unsupported connector type|Unsupported kv_role|is not available for (nixl|mooncake)"
        r"|requires? .{0,40}connector|kv_buffer is not supported|kv_buffer_device",
        "this build does not support the KV connector: choose another engine.kv",
    ),
    (
        r"NIXL is not available|No module named 'nixl",
        "NIXL is not installed beside vLLM: pip install nixl, or choose another engine.kv",
    ),
    (
        r"Mooncake is not available|Please install mooncake|No module named 'mooncake",
        "Mooncake is not installed beside vLLM: pip install mooncake-transfer-engine, or choose another engine.kv",
    ),
    (
        r"NIXL compatibility hash mismatch|Failed to decode Nixl|kv_cache_layout \(local",
        "prefill and decode instances are incompatible: give both the same vLLM, model and options",
    ),
    (
        r"Failed to (connect|setup).{0,40}(master|mooncake)|master.{0,30}(unreachable|refused)",
        "the Mooncake master could not be reached: check the pool named in engine.master",
    ),
    (
        r"Failed to register .* with the Mooncake bootstrap server",
        "the Mooncake bootstrap server could not be reached: check the prefill instances and the network",
    ),
    (
        r"MOONCAKE_CONFIG_PATH' is not set",
        "the Mooncake store has no configuration: choose engine.kv mooncake-store, which writes one",
    ),
    (
        r"no RDMA devices found|No available RNIC|ibv_open_device|ibv_get_device_list",
        "the host has no usable RDMA device: correct rdma_device, or set protocol to tcp",
    ),
    (
        r"Failed to infer device type|no NVIDIA driver|CUDA driver version is insufficient|libcuda\.so\.1: cannot open"
        r"|No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE|no kernel image is available",
        "this build found no usable GPU: check the driver and engine.gpus, or set engine.device to cpu",
    ),
    (
        r"Fatal Python error: Illegal instruction",
        "the CPU refused an instruction: with AMX set dtype to float32 or leave out --enforce-eager, without AVX-512"
        " use a build for this CPU",
    ),
    (
        r"Sleep mode is not supported",
        "this device does not support sleep mode: turn sleep_mode off",
    ),
    (
        r"address already in use|errno 98\b",
        "its port is in use: end the process that listens there, or change WEIR_ENGINE_PORTS",
    ),
    (
        r"cannot assign requested address|errno 99\b",
        "the node's address does not belong to this host: correct --address of manage.py node",
    ),
    (r"Too many open files|errno 24\b", "too many open files: raise the limit (ulimit -n)"),
    (
        r"MemoryError|cannot allocate memory|errno 12\b|std::bad_alloc",
        "the host has too little memory: free some, or lower the use of the engine",
    ),
    (
        r"unrecognized arguments|invalid choice|expected one argument|invalid \w+ value",
        "an option is wrong: correct engine.arguments",
    ),
    (
        r"No module named|command not found|error while loading shared libraries",
        "a program is missing: run manage.py doctor",
    ),
    (r"No space left on device|errno 28\b", "the disk is full: free space, or name another folder"),
    (r"Permission denied|errno 13\b", "permission denied: check the owner of the file"),
)
CAUSES: tuple[tuple[re.Pattern[str], str], ...] = tuple((re.compile(text, re.I), cause) for text, cause in _KNOWN)


def failure_cause(lines: Sequence[str]) -> str:
    """Return the known cause and the last line of the log: `its port is in use: OSError: [Errno 98] …`."""
    written = [line.strip() for line in lines if line.strip()]
    if not written:
        return "it wrote nothing to its log"
    for line in reversed(written):
        for pattern, cause in CAUSES:
            if pattern.search(line):
                return f"{cause}: {line[:300]}"
    return f"its log ends with: {_latest_error(written)[:300]}"


def _latest_error(written: Sequence[str]) -> str:
    """Return the latest specific error; tracebacks and warnings may follow it."""
    return next((line for line in reversed(written) if _ERROR.search(line) and not _GENERAL.search(line)), written[-1])


def failure_fields(instance: Instance, now: dt.datetime) -> Changes:
    """Return updates of the record: the failure count and the end of the back-off."""
    failures = instance.failures + 1
    return {"failures": failures, "next_start_at": now + dt.timedelta(seconds=backoff_s(failures))}
