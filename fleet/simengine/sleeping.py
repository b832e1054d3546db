"""vLLM's sleep mode: the sleeping parts of the GPU's memory, and whether the weights are there. Pure.

Level 1 moves the weights to host memory; level 2 discards them: after waking up, they are whatever lies in that memory,
until they are loaded again. vLLM then answers from it without an error; here such a request fails.
"""

from collections.abc import Sequence

from fleet.simengine.http.errors import asleep, bad_sleep, no_weights

WEIGHTS, KV_CACHE = TAGS = ("weights", "kv_cache")


class SleepMode:
    def __init__(self) -> None:
        self._asleep: set[str] = set()
        self._discarded = False

    @property
    def is_sleeping(self) -> bool:
        return bool(self._asleep)

    def check(self) -> None:
        """Raise ApiError if no request can be served."""
        if self._asleep:
            raise asleep()
        if self._discarded:
            raise no_weights()

    def sleep(self, level: int) -> None:
        if level not in (1, 2):
            raise bad_sleep(f"level must be 1 or 2, not {level}")
        self._asleep = set(TAGS)
        self._discarded |= level == 2

    def wake(self, tags: Sequence[str]) -> None:
        """Wake these parts. `tags`: empty for all of them."""
        unknown = [tag for tag in tags if tag not in TAGS]
        if unknown:
            raise bad_sleep(f"tags must be of {', '.join(TAGS)}, not {unknown[0]}")
        self._asleep -= set(tags or TAGS)

    def reload_weights(self) -> None:
        if WEIGHTS in self._asleep:
            raise bad_sleep("the weights are asleep: POST /wake_up?tags=weights first", 500)
        self._discarded = False
