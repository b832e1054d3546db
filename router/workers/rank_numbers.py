"""Determines how engines number their data-parallel ranks, once per epoch, if that is uncertain. Until an engine has
answered, requests to it do not name a rank, and it chooses one itself.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from router.pool.pool import Pool
from router.pool.ranks import InstanceRanks
from router.upstream.rank_numbering import counts_group
from router.workers.stepping import take_steps

log = logging.getLogger("weir.router")

STEP_S = 0.5
AGAIN_S = 5.0  # pause after an inconclusive answer


class RankNumbers:
    def __init__(self, pools: Callable[[], Iterable[Pool]]) -> None:
        self._pools = pools
        self._asked: dict[InstanceRanks, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        await take_steps(STEP_S, self.step, self._asked.values)

    def step(self) -> None:
        wanted = {
            endpoint.ranks: pool
            for pool in self._pools()
            for endpoint in pool.endpoints.values()
            if endpoint.rank is not None and not endpoint.ranks.is_numbered and endpoint.routable
        }
        for ranks in [ranks for ranks, task in self._asked.items() if ranks not in wanted or task.done()]:
            self._asked.pop(ranks).cancel()
        for ranks in wanted.keys() - self._asked.keys():
            self._asked[ranks] = asyncio.get_running_loop().create_task(_ask(ranks, wanted[ranks].model))


async def _ask(ranks: InstanceRanks, model: str) -> None:
    last, key = ranks.dp.first + ranks.dp.ranks - 1, ranks.endpoints[0].engine_key
    of_group = await counts_group(ranks.upstream, model, last, key)
    if of_group is None:
        ranks.trouble = f"{ranks.instance} is sent requests without their rank: it has not said how it counts its ranks"
        await asyncio.sleep(AGAIN_S)
        return
    ranks.numbered(of_group=of_group)
    log.info("%s counts its data-parallel ranks %s", ranks.instance, "of the group" if of_group else "from 0")
