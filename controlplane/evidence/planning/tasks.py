from celery import shared_task

from controlplane.evidence.planning import running


@shared_task(name="planning.run")
def run(plan_id: int) -> None:
    running.run_plan(plan_id)
