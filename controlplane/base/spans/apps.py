from django.apps import AppConfig


class SpansConfig(AppConfig):
    name = "controlplane.base.spans"

    def ready(self) -> None:
        from controlplane.base.spans import tasks

        tasks.connect()
