"""The modes of an experiment: one file each, registered here with one line."""

from controlplane.evidence.experiments.modes.mode import Mode
from controlplane.evidence.experiments.modes.replay import REPLAY
from controlplane.evidence.experiments.modes.twin import TWIN

MODES: dict[str, Mode] = {mode.name: mode for mode in (REPLAY, TWIN)}
