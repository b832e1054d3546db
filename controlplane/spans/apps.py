from django.apps import AppConfig


class SpansConfig(AppConfig):
    name = "controlplane.spans"

    def ready(self) -> None:
        from controlplane.spans import tasks

        tasks.connect()
