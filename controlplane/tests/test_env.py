import pytest

from controlplane.base.process import env
from controlplane.doors.cli.command import manage


def test_a_value_can_be_read_from_a_file(monkeypatch, tmp_path):
    (tmp_path / "secret").write_text("s3cret\n")
    monkeypatch.setenv("WEIR_X_FILE", str(tmp_path / "secret"))
    assert env.text("WEIR_X") == "s3cret"


def test_a_file_that_cannot_be_read_is_named(monkeypatch):
    monkeypatch.setenv("WEIR_X_FILE", "/nowhere/secret")
    with pytest.raises(env.BadSetting, match="WEIR_X_FILE=/nowhere/secret: No such file"):
        env.text("WEIR_X")


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("WEIR_X", "")
    assert env.text("WEIR_X", "standard") == "standard"


@pytest.mark.parametrize(("value", "meant"), [("1", True), ("Yes", True), ("off", False), ("0", False)])
def test_a_flag_takes_the_usual_words(monkeypatch, value, meant):
    monkeypatch.setenv("WEIR_X", value)
    assert env.flag("WEIR_X") is meant


def test_an_unknown_value_of_a_flag_is_refused_with_the_allowed_ones(monkeypatch):
    monkeypatch.setenv("WEIR_X", "maybe")
    with pytest.raises(env.BadSetting, match="WEIR_X=maybe: allowed are 1, true"):
        env.flag("WEIR_X")


def test_words_are_separated_by_commas(monkeypatch):
    monkeypatch.setenv("WEIR_X", "a, b,,c")
    assert env.words("WEIR_X") == ["a", "b", "c"]


def test_a_choice_is_read_in_any_case_and_written_as_declared(monkeypatch):
    monkeypatch.setenv("WEIR_X", "Json")
    assert env.choice("WEIR_X", ("console", "json")) == "json"
    monkeypatch.setenv("WEIR_X", "xml")
    with pytest.raises(env.BadSetting, match="WEIR_X=xml: allowed are console, json"):
        env.choice("WEIR_X", ("console", "json"))


def test_a_time_zone_must_be_known_to_the_host(monkeypatch):
    assert env.time_zone("WEIR_X") == "UTC"
    monkeypatch.setenv("WEIR_X", "Europe/Berlin")
    assert env.time_zone("WEIR_X") == "Europe/Berlin"
    for wrong in ("Berlin", "../UTC"):
        monkeypatch.setenv("WEIR_X", wrong)
        with pytest.raises(env.BadSetting, match=f"WEIR_X={wrong}: allowed are time zones such as UTC"):
            env.time_zone("WEIR_X")


@pytest.mark.parametrize("value", ["18100", "19000-18000", "80-90", "a-b", "18000-70000"])
def test_an_impossible_range_of_ports_is_refused(monkeypatch, value):
    monkeypatch.setenv("WEIR_X", value)
    with pytest.raises(env.BadSetting, match="allowed is FIRST-LAST"):
        env.span("WEIR_X", (1, 2))


def test_a_postgresql_url_is_split_into_its_parts(monkeypatch):
    monkeypatch.setenv("DB", "postgresql://weir:p%40ss@db.example:5433/fleet")
    found = env.database("DB", "")
    assert (found["USER"], found["PASSWORD"], found["HOST"], found["PORT"], found["NAME"]) == (
        "weir",
        "p@ss",
        "db.example",
        "5433",
        "fleet",
    )


def test_a_path_with_a_space_in_an_sqlite_url_is_kept(monkeypatch):
    monkeypatch.setenv("DB", "sqlite:///my%20data/weir.sqlite3")
    assert env.database("DB", "")["NAME"] == "/my data/weir.sqlite3"


def test_another_database_is_refused_without_its_password(monkeypatch):
    monkeypatch.setenv("DB", "mysql://weir:secret@host/db")
    with pytest.raises(env.BadSetting, match="allowed are sqlite") as refusal:
        env.database("DB", "")
    assert "secret" not in str(refusal.value)


def test_pairs_are_keys_and_values_with_commas_between_them(monkeypatch):
    monkeypatch.setenv("WEIR_NODE_LABELS", "zone=a, disk=nvme")
    assert env.pairs("WEIR_NODE_LABELS") == [("zone", "a"), ("disk", "nvme")]
    monkeypatch.setenv("WEIR_NODE_LABELS", "zone")
    with pytest.raises(env.BadSetting, match="WEIR_NODE_LABELS=zone: must be KEY=VALUE"):
        env.pairs("WEIR_NODE_LABELS")


def test_networks_are_read_and_a_wrong_one_is_named(monkeypatch):
    monkeypatch.setenv("WEIR_NOTICE_NETWORKS", "10.0.0.0/8, fd00::1")
    assert [str(network) for network in env.networks("WEIR_NOTICE_NETWORKS")] == ["10.0.0.0/8", "fd00::1/128"]
    monkeypatch.setenv("WEIR_NOTICE_NETWORKS", "10.0.0.1/8")
    with pytest.raises(env.BadSetting, match=r"WEIR_NOTICE_NETWORKS=10\.0\.0\.1/8: .+ allowed are networks such as"):
        env.networks("WEIR_NOTICE_NETWORKS")


@pytest.mark.parametrize("url", ["postgresql://weir@s3cret:s3cret/weir", "postgresql://weir:s3@cret:99999/weir"])
def test_a_database_url_with_a_bad_port_is_refused_without_its_password(monkeypatch, url):
    monkeypatch.setenv("SOME_URL", url)
    with pytest.raises(env.BadSetting) as refused:
        env.database("SOME_URL", "")
    assert str(refused.value) == "SOME_URL: not a URL with a port of 0 to 65535"


@pytest.mark.parametrize(("given", "found"), [("", None), (" , ", None), ("a, b*", ("a", "b*"))])
def test_a_list_that_is_not_set_is_not_a_list(monkeypatch, given, found):
    monkeypatch.setenv("WEIR_LIST", given)
    assert env.allowed("WEIR_LIST") == found


@pytest.mark.parametrize(("given", "found"), [("", 7), ("0", 0), ("31536000", 31_536_000)])
def test_seconds_are_whole_numbers(monkeypatch, given, found):
    monkeypatch.setenv("WEIR_TIME", given)
    assert env.seconds("WEIR_TIME", 7) == found


@pytest.mark.parametrize("given", ["-1", "1.5", "a year", "9999999999"])
def test_other_seconds_are_refused(monkeypatch, given):
    monkeypatch.setenv("WEIR_TIME", given)
    with pytest.raises(env.BadSetting, match=f"WEIR_TIME={given}: allowed are whole seconds, 0 to 999999999"):
        env.seconds("WEIR_TIME", 7)


def test_folders_are_absolute(monkeypatch):
    monkeypatch.setenv("WEIR_LIST", "/models,/data")
    assert env.folders("WEIR_LIST") == ("/models", "/data")
    monkeypatch.setenv("WEIR_LIST", "/models,data")
    with pytest.raises(env.BadSetting, match="WEIR_LIST=data: allowed are absolute paths"):
        env.folders("WEIR_LIST")


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch):
    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["manage.py", "help"])
    monkeypatch.setattr("django.core.management.execute_from_command_line", interrupted)
    with pytest.raises(SystemExit) as ended:
        manage()
    assert ended.value.code == 130
