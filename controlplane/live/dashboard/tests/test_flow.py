"""The flow of requests, summed over routers; in a large pool the quietest instances are combined."""

from controlplane.live.dashboard.frame import flow
from router.contract.redis.router_status import Moved, RouterStatus, Window


def router(**classes: Window) -> RouterStatus:
    return RouterStatus(id="r", at=0.0, classes={"demo": classes})


def test_rates_of_all_routers_are_added() -> None:
    one = Window(chosen={"session": {"demo-0": 30}, "least_work": {"demo-1": 6}})
    two = Window(chosen={"session": {"demo-0": 30}}, moved={"demo-2": {"demo-0": Moved(n=6, size=600)}})
    found = flow.of_pools([router(warm=one), router(warm=two)], ["demo", "quiet"])
    assert found["demo"]["links"] == [["warm", "session", "demo-0", 1.0], ["warm", "least_work", "demo-1", 0.1]]
    assert found["demo"]["arcs"] == [["demo-2", "demo-0", 0.1, 10]]
    assert found["quiet"] == {"links": [], "arcs": [], "instances": 0}


def test_the_busiest_instances_are_named_and_the_others_combined() -> None:
    many = {f"demo-{i}": i + 1 for i in range(flow.INSTANCES_SHOWN + 3)}
    found = flow.of_pools([router(heavy=Window(chosen={"least_work": many}))], ["demo"])["demo"]
    names = [link[2] for link in found["links"]]
    assert len(names) == flow.INSTANCES_SHOWN + 1
    assert [link[3] for link in found["links"] if link[2] == flow.OTHERS] == [0.1]
    assert found["instances"] == flow.INSTANCES_SHOWN + 3
