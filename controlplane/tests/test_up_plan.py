from dataclasses import replace
from pathlib import Path

from django.apps import apps
from hypothesis import given
from hypothesis import strategies as st

from controlplane.doors.up import plan, supervisor
from controlplane.doors.up.plan import Options, Surroundings
from fleet.jobs import Job

SERVER = ("/wheel/valkey-server", "--port", "0")
BUNDLED = Surroundings("/venv/bin/python", "unix:///data/run/redis.sock", SERVER, "/data/run/index.sock")


def named(options=None, around=BUNDLED):
    options = options or Options()
    return {process.name: process for process in plan.processes(options, around)}


def test_the_plan_contains_every_process_of_the_main_job():
    assert list(named()) == ["redis", "web", "router-1", "control", "experiments", "traffic"]


def test_an_external_redis_is_not_started():
    assert "redis" not in named(around=replace(BUNDLED, redis_command=()))


def test_without_the_demo_there_is_no_traffic():
    assert "traffic" not in named(Options(demo=False))


def test_the_demo_traffic_requests_the_demo_pool_whatever_else_is_served():
    assert named()["traffic"].argv[-2:] == ("http://127.0.0.1:8080", plan.DEMO_POOL)


def test_routers_share_one_port_and_each_has_its_own_port_and_id():
    routers = [
        process.argv for name, process in named(Options(routers=3, router_port=9000)).items() if "router" in name
    ]
    flags = ("--port", "--id", "--shared-port")
    assert [tuple(argv[argv.index(flag) + 1] for flag in flags) for argv in routers] == [
        ("9001", "router-1", "9000"),
        ("9002", "router-2", "9000"),
        ("9003", "router-3", "9000"),
    ]


def test_several_routers_share_an_index_process_and_one_has_its_own():
    shared = named(Options(routers=2))
    assert list(shared)[:4] == ["redis", "web", "index", "router-1"]
    for name, flag in (("index", "--socket"), ("router-1", "--index"), ("router-2", "--index")):
        argv = shared[name].argv
        assert argv[argv.index(flag) + 1] == "/data/run/index.sock"
    assert "--index" not in named()["router-1"].argv


def test_a_single_router_has_the_port_to_itself():
    argv = named(Options(router_port=9000))["router-1"].argv
    assert argv[argv.index("--port") + 1] == "9000"
    assert "--shared-port" not in argv


def test_redis_password_is_in_no_command_line():
    around = replace(BUNDLED, redis_url="redis://:s3cret@redis.example:6379/0", redis_command=())
    assert "s3cret" not in str([process.argv for process in named(around=around).values()])


def test_one_worker_takes_the_steps_and_watches_the_engines_of_this_machine():
    assert [name for name, process in named().items() if "--control" in process.argv] == ["control"]


def test_each_queue_has_one_worker():
    queues = [process.argv[process.argv.index("-Q") + 1] for process in named().values() if "-Q" in process.argv]
    assert sorted(",".join(queues).split(",")) == ["control", "experiments", "node.local"]


def test_a_server_bound_to_every_address_is_reached_on_loopback():
    assert named(Options(host="0.0.0.0"))["web"].ready.target == "http://127.0.0.1:8000/healthz"
    assert named(Options(host="::1"))["web"].ready.target == "http://[::1]:8000/healthz"


def test_stopping_fits_into_ten_seconds_even_when_nothing_obeys():
    processes = named(Options(routers=3)).values()
    graces = [max(each.grace_s for each in processes if each.stage in stages) for stages in plan.STOP_ORDER]
    assert sum(graces) + supervisor.ENGINES_S <= plan.STOPPED_WITHIN_S - 0.5


def test_workers_stop_before_the_servers_and_redis_last():
    order = [stage for stages in plan.STOP_ORDER for stage in stages]
    assert order.index("traffic") < order.index("workers") < order.index("servers") < order.index("store")
    assert order.index("background") < order.index("servers")


def test_every_process_is_stopped():
    assert {process.stage for process in named().values()} == {stage for stages in plan.STOP_ORDER for stage in stages}


@given(st.integers(1, 100))
def test_restarts_wait_longer_each_time_up_to_the_limit(failures):
    delay, later = plan.restart_delay_s(failures), plan.restart_delay_s(failures + 1)
    assert 0 < delay <= later <= plan.BACKOFF_LIMIT_S


def test_the_first_restart_is_nearly_at_once():
    assert [plan.restart_delay_s(failures) for failures in (0, 1, 2, 3, 50)] == [0.0, 0.5, 1.0, 2.0, 30.0]


def test_a_process_that_ran_for_a_minute_is_restarted_without_delay():
    assert plan.failures_after(5, ran_s=plan.STEADY_S) == 1
    assert plan.failures_after(5, ran_s=plan.STEADY_S - 1) == 6


def test_the_demo_fleet_is_a_valid_document():
    from controlplane.doors.up import database

    database.check_fleet(Path(__file__).parents[2] / database.DEMO_FLEET)


def test_jobs_leave_the_control_worker_a_thread_for_orders():
    of_control = [model for model in apps.get_models() if issubclass(model, Job) and model().queue == "control"]
    assert {model.__name__ for model in of_control} == {"Batch", "Calibration", "FleetPlan", "Preview", "Tuning"}
    assert sum(1 if model.SHARE_A_THREAD else model.AT_ONCE for model in of_control) < plan.THREADS
