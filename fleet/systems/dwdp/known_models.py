"""Experts per layer, without shared ones, by model name, from the published configurations."""

import re

_EXPERTS = (
    (r"deepseek-(r1(?!-distill)|v3(?!-lite))", 256),
    (r"gpt-oss-120b", 128),
    (r"gpt-oss-20b", 32),
    (r"qwen3-(235b-a22b|30b-a3b)", 128),
    (r"kimi-k2", 384),
)


def experts_of(model: str) -> int | None:
    """Return the number of experts of a model; None if unknown."""
    return next((experts for name, experts in _EXPERTS if re.search(name, model.lower())), None)
