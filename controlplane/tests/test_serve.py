"""`manage.py serve`: one process of Weir under another supervisor."""

import os
import sys

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from controlplane.traffic.policies.models import Policy


@pytest.fixture
def became(monkeypatch):
    """The command lines that this process would have executed."""
    seen = []
    monkeypatch.setattr(os, "execv", lambda path, argv: seen.append((path, argv)))
    return seen


@pytest.mark.parametrize(
    ("process", "words"),
    [
        ("web", ("-m", "controlplane.doors.web", "--host", "127.0.0.1", "--port", "8000")),
        ("router", ("-m", "router", "--host", "127.0.0.1", "--port", "8080")),
        ("index", ("-m", "router.index", "--socket")),
        ("control", ("-m", "celery", "-Q", "control", "--control")),
        ("experiments", ("-m", "celery", "-Q", "experiments")),
    ],
)
def test_serve_executes_the_process_with_the_command_line_of_up(process, words, became):
    call_command("serve", process)
    ((path, argv),) = became
    assert path == argv[0] == sys.executable
    assert [word for word in argv if word in words] == list(words)


def test_serve_listens_on_the_given_address(became):
    call_command("serve", "router", "--host", "0.0.0.0", "--port", "9000")
    (_, argv) = became[0]
    assert (argv[argv.index("--host") + 1], argv[argv.index("--port") + 1]) == ("0.0.0.0", "9000")


def test_routers_of_a_host_share_a_port_and_an_index(became, settings):
    call_command("serve", "index")
    call_command("serve", "router", "--port", "8081", "--shared-port", "8080", "--index")
    (_, index), (_, router) = became
    assert index[-2:] == ("--socket", str(settings.INDEX_SOCKET))
    assert router[-4:] == ("--shared-port", "8080", "--index", str(settings.INDEX_SOCKET))
    with pytest.raises(CommandError, match="--shared-port and --index go with router only"):
        call_command("serve", "web", "--index")


def test_the_password_of_redis_is_in_no_command_line(became, settings):
    settings.REDIS_URL = "redis://:s3cret@redis.example:6379/0"
    for process in ("web", "router", "control", "experiments"):
        call_command("serve", process)
    assert "s3cret" not in str(became)


def test_an_unknown_process_is_refused(became):
    with pytest.raises(CommandError, match="invalid choice: 'beat'"):
        call_command("serve", "beat")
    assert became == []


def test_preparing_creates_the_administrator_and_the_default_policy_once(db, capsys):
    call_command("serve", "prepare")
    assert "password" in capsys.readouterr().out
    call_command("serve", "prepare")
    assert "password" not in capsys.readouterr().out
    assert User.objects.filter(username="admin").count() == 1
    assert Policy.objects.filter(name="default").count() == 1
