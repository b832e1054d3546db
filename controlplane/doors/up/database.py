"""The part of `up` that needs Django's applications: database, first administrator, policy, fleet and engines. weir.py
imports it late: the import takes half a second, during which the servers already start.
"""

from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.utils import DatabaseError

from controlplane.base.process import env, migrated
from controlplane.doors.up import CannotStart
from controlplane.doors.up.console import say
from controlplane.doors.up.plan import Options
from controlplane.pages.fleet_ops import actions
from controlplane.people.accounts.services import ensure_admin
from controlplane.people.audit.services import on_host
from controlplane.traffic.policies.errors import RulesForbid
from controlplane.traffic.policies.services import ensure_default_policy, ensure_offload_policy
from fleet import selectors, services
from fleet.control.shutdown import stop_all
from fleet.kinds import KINDS
from fleet.node.launcher import LaunchFailed
from fleet.spec import document, fleet_spec
from router.contract import installation
from router.contract.values.json_value import JsonObject

DEMO_FLEET = installation.FILES / "examples/fleet-demo.yaml"
NODE = "local"
# A low threshold for trials, because few prompts of the demo have 40,000 new tokens, the default.
DEMO_POLICY: JsonObject = {"strategy.name": "adaptive_v1", "classes.heavy_new_tokens": 20_000}
ENGINE_GRACE_S = 1.5


def prepare(options: Options) -> str:
    """Bring database, administrator, policy and fleet up to date; return the administrator's password if it is new."""
    try:
        if migrated.missing(migrated.wanted()):
            call_command("migrate", verbosity=0, interactive=False, skip_checks=True)
        password = ensure_admin().password or ""
        ensure_default_policy(DEMO_POLICY if options.demo else None)
        ensure_offload_policy()
        _apply_fleet(options)
        return password
    except env.BadSetting as error:
        raise CannotStart(str(error)) from error
    except (DatabaseError, OSError) as error:
        raise CannotStart(f"database {settings.DATABASES['default']['NAME']}: {error}") from error
    finally:
        connections.close_all()


def _apply_fleet(options: Options) -> None:
    chosen = options.fleet
    if chosen is None and options.demo and not selectors.pools().exists():
        chosen = DEMO_FLEET
    if chosen is not None:
        try:
            actions.apply(chosen.read_text(), on_host("up"), reason=f"up --fleet {chosen}")
            say("fleet", f"applied {chosen}")
        except (RulesForbid, fleet_spec.InvalidFleet) as error:  # Routers and engines continue with the present fleet.
            say("fleet", f"{chosen} is not applied: {error}")


def check_fleet(path: Path) -> None:
    """Raise CannotStart if the document cannot be applied."""
    try:
        services.read_fleet(document.load(path.read_text()))
    except (OSError, UnicodeDecodeError, document.UnreadableDocument, fleet_spec.InvalidFleet) as error:
        raise CannotStart(f"--fleet {path}: {' '.join(str(error).split())}") from None


def served_model() -> str:
    """Return a model of the fleet for the suggested request; empty if there is none, or if the database does not
    answer."""
    try:
        serving = [kind.name for kind in KINDS.values() if kind.serves]
        pool = selectors.pools().filter(kind__in=serving).first()
        return pool.model if pool else ""
    except DatabaseError:
        return ""
    finally:
        connections.close_all()


def ready_instances(pool: str) -> tuple[int, int] | None:
    """Return (ready, wanted); None while the database does not answer."""
    try:
        return selectors.pool_ready(pool)
    except DatabaseError:
        return None
    finally:
        connections.close_all()


def stop_engines() -> None:
    """Stop the engines but keep their desired state, so that the next `up` starts them. The LaunchError names
    engines that still run."""
    try:
        left = stop_all(NODE, ENGINE_GRACE_S).left
    finally:
        connections.close_all()
    if left:
        raise LaunchFailed("; ".join(f"{name}: {why}" for name, why in left.items()))
