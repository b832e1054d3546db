"""The Celery application: queues, the static schedule, and limits that keep tasks from piling up."""

import os

import click
from celery import Celery

from controlplane import worker

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("weir")
app.config_from_object("django.conf:settings", namespace="CELERY")


def every(seconds: float, task: str, queue: str = "control") -> dict[str, object]:
    """A periodic step. It expires when the next one is due, so that a busy queue does not fill up."""
    return {"task": task, "schedule": seconds, "options": {"queue": queue, "expires": max(seconds, 1.0)}}


app.conf.update(
    task_ignore_result=True,
    task_default_queue="control",
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"socket_timeout": 30, "visibility_timeout": 3600, "global_keyprefix": "weir-celery:"},
    worker_send_task_events=False,
    beat_max_loop_interval=1,
    beat_scheduler="controlplane.worker:BeatScheduler",  # without a file: nothing to remember between two starts
    beat_schedule={
        "fleet.reconcile": every(1.0, "fleet.reconcile"),
        "fleet.scrape": every(1.0, "fleet.scrape", queue="node.local"),
        "fleet.watch_silent": every(1.0, "fleet.watch_silent"),
        "fleet.publish": every(2.0, "fleet.publish"),
        "fleet.autoscale": every(5.0, "fleet.autoscale"),
        "dashboard.frame": every(1.0, "dashboard.frame"),
        "policies.republish_missing": every(2.0, "policies.republish_missing"),
        "deliveries.judge": every(5.0, "deliveries.judge"),
        "delivery_pages.report": every(2.0, "delivery_pages.report"),
        "previews.report_savings": every(10.0, "previews.report_savings"),
        "keys.republish": every(2.0, "keys.republish"),
        "notices.send": every(2.0, "notices.send"),
        "notices.clean_up": every(3600.0, "notices.clean_up"),
        "jobs.expire": every(5.0, "jobs.expire"),
        "api.clean_up": every(3600.0, "api.clean_up"),
    },
)
app.user_options["worker"].add(
    click.Option(("--with-beat",), is_flag=True, help="Run the schedule in a thread of this worker (one in the fleet).")
)
app.user_options["worker"].add(
    click.Option(("--node",), default="", help="Watch the engines of this host as that node (manage.py node).")
)
app.steps["worker"].add(worker.Beat)
app.steps["worker"].add(worker.BeatWatch)
app.steps["consumer"].add(worker.Presence)
app.autodiscover_tasks()
