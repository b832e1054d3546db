"""Counts the use by API keys, by hour, key, pool and model; each count grows until the database has it."""

from router.contract.api_paths import IMAGES
from router.contract.redis.use import HOUR_S, KEPT_HOURS, MOST_ROWS, OTHER, UseCounts, UseHour, UseRow
from router.contract.values import lax
from router.request.call import Call

MOST_IMAGES = 1_000  # images of one request, since the client's field is not trusted
_Identity = tuple[str, str, str]  # key, pool, model


class _Tally:
    """A UseCounts that is being added up."""

    __slots__ = ("audio_s", "cached", "cancelled", "client_errors", "dollars", "estimated", "failed", "gpu_s", "images",
                 "input", "name", "output", "refused", "requests")  # fmt: skip

    def __init__(self) -> None:
        self.name = ""
        self.requests = self.refused = self.client_errors = self.failed = self.cancelled = self.estimated = 0
        self.input = self.cached = self.output = self.images = 0
        self.gpu_s = self.dollars = self.audio_s = 0.0

    def add(self, call: Call) -> None:
        outcome = call.outcome
        label, usage = outcome.label, outcome.usage
        self.requests += 1
        if label != "ok":
            self.refused += label == "refused"
            self.client_errors += label == "client_error"
            self.failed += label == "error"
            self.cancelled += label == "cancelled"
        if usage is not None and usage.prompt_tokens is not None:
            self.input += usage.prompt_tokens
            reported = usage.output_tokens
            output = reported if reported and label == "ok" else outcome.output_tokens
            self.output += output
            self.estimated += outcome.streamed and output != reported
            self.cached += min(usage.cached_tokens or 0, usage.prompt_tokens)
        elif outcome.begun and outcome.status < 400 and outcome.computed:  # no usage, or the answer was cut off
            self.input += call.prediction.prompt_tokens
            self.output += outcome.output_tokens
            self.estimated += bool(call.prediction.prompt_tokens or outcome.streamed_tokens)
        if not call.prediction.prompt_tokens:
            self._add_media(call)
        self.gpu_s += outcome.gpu_s
        self.dollars += outcome.dollars

    def _add_media(self, call: Call) -> None:
        outcome = call.outcome
        if outcome.usage is not None:
            self.audio_s += outcome.usage.audio_s or 0.0
        if outcome.label == "ok" and call.api_path in IMAGES:
            self.images += int(min(lax.number(call.request.prompt.document.get("n")) or 1, MOST_IMAGES))

    def read(self) -> UseCounts:
        return UseCounts(
            self.requests,
            self.refused,
            self.failed,
            self.cancelled,
            self.input,
            self.cached,
            self.output,
            self.estimated,
            round(self.gpu_s * 1e6),
            round(self.dollars * 1e6),
            round(self.audio_s * 1e3),
            self.images,
            self.client_errors,
        )


class _Hour:
    __slots__ = ("changed", "rows", "written")

    def __init__(self) -> None:
        self.rows: dict[_Identity, _Tally] = {}
        self.written = 0
        self.changed = False


class UseCounter:
    def __init__(self) -> None:
        self._hours: dict[int, _Hour] = {}
        self._least = 0  # earlier hours may already be in the database and are not kept here
        self.merged = 0  # requests counted under OTHER
        self.lost_hours = 0  # hours forgotten unconfirmed

    def ended(self, call: Call) -> None:
        number = int((call.at + call.outcome.e2e_ms / 1000) // HOUR_S)
        hour = self._hours.get(number) or self._hour(number)
        key, name = (call.key.id, call.key.name) if call.key is not None else ("", "")
        pool = call.pool
        model = _model(call) if call.alias is not None or call.adapter else pool.model
        identity = (key, pool.name_in_use, model)
        tally = hour.rows.get(identity)
        if tally is None:
            if len(hour.rows) >= MOST_ROWS:
                identity, name = (OTHER, "", ""), OTHER
                self.merged += 1
            tally = hour.rows.setdefault(identity, _Tally())
        tally.name = name
        tally.add(call)
        hour.changed = True

    def _hour(self, number: int) -> _Hour:
        return self._hours.setdefault(max(self._least, number), _Hour())

    def take(self, now: float) -> list[UseHour]:
        """Return the changed hours, each as a whole; `failed` lists hours that could not be written. `now` is Unix
        time."""
        self._forget_oldest()
        taken = []
        for number, hour in self._hours.items():
            if hour.changed:
                hour.changed = False
                hour.written += 1
                rows = tuple(UseRow(key, t.name, pool, model, t.read()) for (key, pool, model), t in hour.rows.items())
                taken.append(UseHour(hour=number, written=hour.written, at=now, rows=rows))
        return taken

    def failed(self, values: list[UseHour]) -> None:
        for value in values:
            if value.hour in self._hours:
                self._hours[value.hour].changed = True

    def again(self) -> None:
        """Write every hour again, because Redis has lost them."""
        for hour in self._hours.values():
            hour.changed = True

    @property
    def rows(self) -> int:
        return sum(len(hour.rows) for hour in self._hours.values() if hour.changed)

    @property
    def hours(self) -> list[int]:
        return list(self._hours)

    def confirmed(self, kept: dict[int, int], now: float) -> list[int]:
        """Drop the closed hours that the database has, and return them. `kept` gives the last write by hour."""
        present = int(now // HOUR_S)
        done = [
            number
            for number, hour in self._hours.items()
            if number < present and not hour.changed and kept.get(number) == hour.written
        ]
        for number in done:
            self._forget(number)
        return done

    def _forget(self, number: int) -> None:
        del self._hours[number]
        self._least = max(self._least, number + 1)

    def _forget_oldest(self) -> None:
        while len(self._hours) > KEPT_HOURS:
            self._forget(min(self._hours))
            self.lost_hours += 1


def _model(call: Call) -> str:
    """Return the engine's name of the model; with names of their own, clients could create any number of rows."""
    if call.alias is not None:
        return call.alias.serves
    return call.adapter if call.adapter in call.pool.adapters else call.pool.model
