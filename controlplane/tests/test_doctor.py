import pytest

from controlplane.doors import doctor
from fleet.spec.fleet_spec import PoolSpec


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("WEIR_SECRET_KEY", "abc", "(set)"),
        ("WEIR_ADMIN_PASSWORD", "", ""),
        ("REDIS_URL", "redis://:s3cret@h:1/0", "redis://:(hidden)@h:1/0"),
        ("DATABASE_URL", "postgresql://u:s3cret@h/weir", "postgresql://u:(hidden)@h/weir"),
        ("WEIR_DATA_DIR", "/var/lib/weir", "/var/lib/weir"),
    ],
)
def test_the_settings_are_printed_without_secrets(name, value, shown):
    assert doctor.masked(name, value) == shown


def test_an_unreachable_redis_is_named_without_its_password(settings):
    settings.REDIS_URL = "redis://:s3cret@127.0.0.1:1/0"
    finding = doctor.redis_server()
    assert not finding.good
    assert "s3cret" not in finding.text


def test_doctor_warns_of_the_parts_of_the_host_that_operators_can_reach(settings):
    assert "(not set: WEIR_ALLOWED_PROGRAMS, WEIR_ALLOWED_FOLDERS, WEIR_ALLOWED_VARIABLES," in doctor.operators().text
    for name in ("PROGRAMS", "FOLDERS", "VARIABLES", "ARGUMENTS"):
        setattr(settings, f"ALLOWED_{name}", ("none",))
    assert doctor.operators().text == "programs, folders, variables and arguments of engines are listed"


@pytest.mark.parametrize(("ssd", "named"), [(False, ["pool store"]), (True, [])])
def test_a_disk_of_the_store_needs_a_master_with_an_ssd_tier(ssd, named):
    pools = [
        PoolSpec("master", "m", "mooncake-master", engine={"ssd": ssd}),
        PoolSpec("store", "m", "mooncake-client", engine={"ssd": True, "master": "master"}),
        PoolSpec("memory", "m", "mooncake-client", engine={"master": "master"}),
    ]
    findings = doctor.disks_without_master(pools)
    assert [finding.subject for finding in findings] == named
    assert all(finding.advice == "set engine.ssd of the pool master to true" for finding in findings)
