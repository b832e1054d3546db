"""The engine's busiest modules, which fits to traffic run compiled: they replay requests a hundred times."""

from router.compiled import CompiledCopy

# Instances of their classes cannot be pickled. The law is left out: it crosses processes, and runs once per step.
ENGINE = CompiledCopy(
    "fleet.engine",
    (
        "blocks",
        "engine",
        "neuron_batches",
        "power",
        "request",
        "scheduler",
    ),
)
