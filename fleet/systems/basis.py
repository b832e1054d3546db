"""The evidential value of agreement with a published value."""

from typing import Literal

# fitted: proves nothing, as a parameter was solved from this value or chosen with knowledge of it. arithmetic: proves
# nothing about the model, as the value follows from other numbers or from a formula in its source. predicted: shows
# that the model is right there.
Basis = Literal["fitted", "arithmetic", "predicted"]
