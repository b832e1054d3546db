"""The engine's busiest modules. They run compiled in fits to traffic, where requests are replayed a hundred times."""

from router.compiled import CompiledCopy

# Instances of compiled classes cannot be pickled. The law is therefore left out: it is passed between processes, and
# runs only once per step.
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
