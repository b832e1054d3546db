"""What an agreement with a published value proves."""

from typing import Literal

# fitted: proves nothing, as a parameter was solved from this value or chosen knowing it
# arithmetic: proves nothing about the model, as the value follows from other numbers or a formula of its source
# predicted: the model is right there
Basis = Literal["fitted", "arithmetic", "predicted"]
