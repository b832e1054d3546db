import pytest

from controlplane.people.audit.services import Actor
from controlplane.traffic.policies import services as policies
from fleet.models import Pool

ADA = Actor("user", "ada", is_admin=True)
OTTO = Actor("user", "otto")
WHY = "large prompts go to the new GPUs"


@pytest.fixture
def pools(db):
    """Three pools of one policy; `loras` loads adapters."""
    policies.ensure_default_policy()
    engine = {"enable_lora": True, "max_loras": 2}
    return {
        name: Pool.objects.create(name=name, model=model, kind="sim", policy="default", replicas=2, engine=more)
        for name, model, more in (("big", "llama", {}), ("small", "llama-8b", {}), ("loras", "llama", engine))
    }


def document(**names):
    return {"schema": 1, "models": names}


SPLIT = {"split": [{"pool": "big", "weight": 90}, {"pool": "small", "weight": 10}], "fallback": [{"pool": "loras"}]}
BOT = {"pool": "loras", "adapter": {"name": "bot@v1", "source": "/lora/bot-v1", "replicas": 1}}
