"""The Celery application: queues, the static schedule, and what keeps tasks from piling up."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("weir")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    task_ignore_result=True,
    task_default_queue="control",
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"socket_timeout": 30, "visibility_timeout": 3600, "global_keyprefix": "weir-celery:"},
    worker_send_task_events=False,
    beat_max_loop_interval=1,
    # Every entry is a step that runs again a second later: one that waited longer is not worth running.
    beat_schedule={},
)
app.autodiscover_tasks()
