"""Celery's messages over RabbitMQ instead of Redis."""

import os
import signal

import pytest

from controlplane.tests.rabbitmq import rabbitmq
from controlplane.tests.real_up import running
from controlplane.tests.test_up_whole import FLEET

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(300)]


@pytest.fixture
def broker():
    with rabbitmq() as started:
        yield started


def test_engines_are_replaced_again_after_the_broker_was_unreachable(broker, tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    with running("--fleet", str(fleet), WEIR_CELERY_BROKER_URL=broker.url) as weir:
        weir.wait_for("2/2 instances of pool demo are ready")
        before = {pid for pid, _ in weir.engines()}
        broker.kill()
        broker.start()
        gone = min(before)
        os.kill(gone, signal.SIGKILL)
        weir.until(lambda: len(weir.engines()) == 2 and gone not in dict(weir.engines()), "another engine")
        assert weir.stop() < 30.0
        assert weir.left() == []
