from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "controlplane.jobs"

    def ready(self) -> None:
        import controlplane.celery  # noqa: F401 - jobs are sent to our broker from every process
