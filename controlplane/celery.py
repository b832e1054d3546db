"""The Celery application: its queues carry orders to nodes and jobs; the steps have their own threads
(controlplane/base/schedule).
"""

import os

import click
from celery import Celery

from controlplane.base import worker

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("weir")
app.config_from_object("django.conf:settings", namespace="CELERY")

app.conf.update(
    task_ignore_result=True,
    task_default_queue="control",
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"socket_timeout": 30, "visibility_timeout": 3600, "global_keyprefix": "weir-celery:"},
    worker_send_task_events=False,
)
app.user_options["worker"].add(
    click.Option(("--control",), is_flag=True, help="Take the control plane's steps while this worker leads.")
)
app.user_options["worker"].add(
    click.Option(("--node",), default="", help="Watch the engines of this host as that node (manage.py node).")
)
app.steps["worker"].add(worker.Steps)
app.steps["worker"].add(worker.Watch)
app.steps["consumer"].add(worker.Presence)
app.autodiscover_tasks()
app.autodiscover_tasks(related_name="running")  # the jobs
