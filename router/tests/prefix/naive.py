"""A prefix index written for readability, not speed; the real one must agree with it."""

from dataclasses import dataclass, field


@dataclass
class Held:
    epoch: int
    limit: int
    chunks: list[int] = field(default_factory=list)  # least recently used first
    promised: dict[int, int] = field(default_factory=dict)

    def prefix(self, hashes: list[int]) -> int:
        count = 0
        while count < len(hashes) and hashes[count] in self.chunks:
            count += 1
        return count


class NaiveIndex:
    def __init__(self, max_chunks: int, instance_chunks: int) -> None:
        self.max_chunks = max_chunks
        self.instance_chunks = instance_chunks
        self.held: dict[str, Held] = {}
        self.limits: dict[str, int] = {}

    def match(self, hashes: list[int]) -> dict[str, int]:
        return {name: count for name, held in self.held.items() if (count := held.prefix(hashes))}

    def insert(self, instance: str, epoch: int, hashes: list[int]) -> int:
        if instance in self.held and epoch < self.held[instance].epoch:
            return 0
        if instance in self.held and epoch > self.held[instance].epoch:
            del self.held[instance]
        if instance not in self.held:
            limit = self.limits.get(instance, self.instance_chunks)
            self.held[instance] = Held(epoch, limit)
        return self.use(self.held[instance], hashes) if hashes else 0

    def use(self, held: Held, hashes: list[int]) -> int:
        room = self.room(held)
        kept = hashes[:room]
        before = held.prefix(kept)
        held.promised[hashes[-1]] = min(before, held.promised.get(hashes[-1], before))
        if len(held.promised) > room:
            held.promised.pop(next(iter(held.promised)))
        for chunk in reversed(kept):
            if chunk in held.chunks:
                held.chunks.remove(chunk)
            held.chunks.append(chunk)
        if len(held.chunks) > room:
            self.shrink(held, room - room // 16)
        return before

    def correct(self, instance: str, hashes: list[int], cached: int) -> int:
        held = self.held.get(instance)
        if held is None or not hashes:
            return 0
        predicted = held.promised.pop(hashes[-1]) if hashes[-1] in held.promised else held.prefix(hashes)
        if cached >= predicted - predicted // 8:
            return 0
        before = len(held.chunks)
        self.shrink(held, max(1, before - (predicted - cached)))
        return before - len(held.chunks)

    def limit(self, instance: str, chunks: int) -> None:
        if self.limits.get(instance) == chunks:
            return
        self.limits[instance] = chunks
        if instance in self.held:
            held = self.held[instance]
            held.limit = chunks
            self.shrink(held, self.room(held))

    def purge(self, instance: str) -> None:
        self.held.pop(instance, None)

    def room(self, held: Held) -> int:
        return min(held.limit, max(1, self.max_chunks // len(self.held)))

    @staticmethod
    def shrink(held: Held, size: int) -> None:
        while len(held.chunks) > size:
            held.chunks.pop(0)
