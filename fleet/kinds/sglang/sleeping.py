"""Steps that put SGLang to sleep and wake it, through the API paths of version 0.5.23. Pure. SGLang has no page that
reports whether it sleeps, and it empties its cache when it falls asleep.
"""

from fleet.kinds.vllm.sleeping import Sleeping, SleepStep, Weights


def _wake_sglang(level: int, weights: Weights) -> tuple[SleepStep, ...]:
    token = SleepStep("/health_generate", asks=True)  # also asked of each part of a divided pool
    if level == 1:
        return SleepStep("/resume_memory_occupation", {}), token
    return (
        SleepStep("/resume_memory_occupation", {"tags": ["weights", "cuda_graph"]}),
        SleepStep("/update_weights_from_disk", {"model_path": weights.folder, "flush_cache": False}),
        SleepStep("/resume_memory_occupation", {"tags": ["kv_cache"]}),
        token,
    )


SGLANG_SLEEP = Sleeping(lambda level: (SleepStep("/release_memory_occupation", {}),), _wake_sglang, repeats=False)
