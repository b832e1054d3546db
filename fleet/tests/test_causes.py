"""Recognise lines that engines log, and show their causes."""

import pytest

from fleet.plan.failure import CAUSES, failure_cause

# The lines are those of installed engines (vLLM 0.32 and its dependencies), with values filled in.
LINES = {
    "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (9.41 GiB).": "its KV cache is too small",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`": "its KV cache is",
    "ValueError: Free memory on device cuda:0 (3.02/79.11 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 71.2 GiB).": "another process uses the GPU",
    "ValueError: Available memory on node 0 (2.1/23.5 GiB) on kv cache allocation is less than requested memory for kv "
    "(4.0 GiB).": "the host has too little memory: lower cpu_kv_gib",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "the GPU has too little memory",
    "ValueError: User-specified max_model_len (40960) is greater than the derived max_model_len "
    "(max_position_embeddings=32768": "max_model_len exceeds the limit of the model",
    "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).": "tensor_p",
    "OSError: You are trying to access a gated repo.": "this account may not read the model",
    "OSError: x is not a local folder and is not a valid model identifier listed on 'hf.co'": "the model was not found",
    "OSError: x does not appear to have a file named config.json.": "the model was not found",
    "RuntimeError: Cannot find any model weights with `/models/x`": "the model was not found",
    "OSError: We couldn't connect to 'https://hf.co' to load the files": "the model could not be downloaded",
    "ValueError: Please pass the argument `trust_remote_code=True` in LLM": "the model contains its own code",
    "ValueError: Model architectures ['XForCausalLM'] are not supported for now.": "this build does not support",
    "safetensors_rust.SafetensorError: Error while deserializing header": "the model's files are broken",
    "ValueError: Unsupported connector type: XConnector": "this build does not support the KV connector",
    "ValueError: Unsupported kv_role: kv_x. Supported roles are": "this build does not support the KV connector",
    "RuntimeError: cpu with cuda kv_buffer is not supported.": "this build does not support the KV connector",
    "RuntimeError: NIXL is not available": "NIXL is not installed",
    "RuntimeError: Mooncake is not available": "Mooncake is not installed",
    "ModuleNotFoundError: No module named 'mooncake.engine'": "Mooncake is not installed",
    "RuntimeError: NIXL compatibility hash mismatch. Local: a, Remote: b.": "prefill and decode instances are",
    "Failed to setup mooncake store client": "the Mooncake master could not be reached",
    "RuntimeError: Failed to register worker with the Mooncake bootstrap server at http://10.0.0.1:8998 after 5 "
    "attempts.": "the Mooncake bootstrap server could not be reached",
    "ValueError: The environment variable 'MOONCAKE_CONFIG_PATH' is not set.": "the Mooncake store has no config",
    "Fatal Python error: Illegal instruction": "the CPU refused an instruction",
    "rdma_context.cpp: (no RDMA devices found)": "the host has no usable RDMA device",
    "RuntimeError: Failed to infer device type, please set the environment variable": "this build found no usable GPU",
    "ImportError: libcuda.so.1: cannot open shared object file": "this build found no usable GPU",
    "ValueError: Sleep mode is not supported on current platform.": "this device does not support sleep mode",
    "OSError: [Errno 98] Address already in use": "its port is in use",
    "OSError: [Errno 99] Cannot assign requested address": "the node's address does not belong to this host",
    "OSError: [Errno 24] Too many open files": "too many open files",
    "MemoryError": "the host has too little memory",
    "terminate called after throwing an instance of 'std::bad_alloc'": "the host has too little memory",
    "api_server.py: error: unrecognized arguments: --foo": "an option is wrong",
    "/usr/bin/python3: No module named vllm": "a program is missing",
    "OSError: [Errno 28] No space left on device": "the disk is full",
    "PermissionError: [Errno 13] Permission denied: '/models'": "permission denied",
}


@pytest.mark.parametrize(("line", "words"), LINES.items())
def test_a_known_log_line_is_reported_as_its_cause(line: str, words: str) -> None:
    told = failure_cause(["INFO starting", line, "  warnings.warn('resource_tracker')"])
    assert told.startswith(words)
    assert told.endswith(line[:300])


def test_each_cause_has_advice_and_an_example_line() -> None:
    assert [cause for _, cause in CAUSES if ": " not in cause] == []
    found = [next(cause for pattern, cause in CAUSES if pattern.search(line)) for line in LINES]
    assert {cause for _, cause in CAUSES} - set(found) == set()
