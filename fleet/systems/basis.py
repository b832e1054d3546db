"""The weight of an agreement with a published value."""

from typing import Literal

# fitted: nothing, as a parameter was solved from this value or chosen knowing it
# arithmetic: nothing of the model, as the value follows from other numbers of its source, or from a formula of it
# predicted: the model is right there
Basis = Literal["fitted", "arithmetic", "predicted"]
