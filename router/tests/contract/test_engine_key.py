"""A reference names the key of an engine; the key is read again when its source changes."""

import os

import pytest

from router.contract.net import whereabouts
from router.contract.net.engine_key import EngineKeyMissing, headers, is_reference, line, refusal, replaced, trouble

KEY = "sk-engine-1"


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """Allow every file, use a data folder of the test, and check files at every read."""
    for name in ("WEIR_ALLOWED_FOLDERS", "WEIR_ALLOWED_FOLDERS_FILE", "WEIR_ALLOWED_VARIABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WEIR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(whereabouts, "LOOK_S", 0.0)
    whereabouts._files.clear()


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "qwen"
    path.write_text(f"{KEY}\n")
    return path


@pytest.mark.parametrize(
    "given",
    ["env:VLLM_API_KEY", "env:ENGINE_KEY", "env:qwen_ENGINE_KEY_2", "file:/etc/weir/qwen", "file:/a-b/c.key"],
)
def test_a_variable_or_a_file_names_a_key(given):
    assert is_reference(given)


@pytest.mark.parametrize(
    "given",
    [
        *("", KEY, "env:", "env:WEIR_SECRET_KEY", "env:AWS_SECRET_ACCESS_KEY", "env:DATABASE_URL", "env:A API_KEY"),
        *(
            "env:1API_KEY",
            "file:etc/key",
            "file:/",
            "file:/a/../b",
            "file:/a/..",
            "file:/a\nb",
            "file:/a b",
            "file:/a,b",
            "ENV:API_KEY",
        ),
        *("env:ÄPI_API_KEY", f"env:{'A' * 300}API_KEY"),
    ],
)
def test_nothing_else_names_a_key(given):
    assert not is_reference(given)
    assert given == "" or trouble(given).startswith("its engine key must be named as env:NAME")


def test_the_key_in_a_variable_becomes_a_header(monkeypatch):
    monkeypatch.setenv("QWEN_API_KEY", KEY)
    assert line("env:QWEN_API_KEY") == b"authorization: Bearer sk-engine-1\r\n"
    assert headers("env:QWEN_API_KEY") == {"authorization": "Bearer sk-engine-1"}


def test_an_engine_without_a_key_gets_no_header():
    assert (line(""), headers(""), trouble("")) == (b"", {}, "")


def test_a_file_is_read_again_when_it_changes(key_file, monkeypatch):
    assert line(f"file:{key_file}") == b"authorization: Bearer sk-engine-1\r\n"
    new = key_file.with_name("new")
    new.write_text("sk-engine-2")
    new.replace(key_file)  # as Kubernetes updates a mounted Secret
    assert line(f"file:{key_file}") == b"authorization: Bearer sk-engine-2\r\n"
    key_file.unlink()
    assert "No such file" not in trouble(f"file:{key_file}")
    monkeypatch.setenv("WEIR_ALLOWED_FOLDERS", str(key_file.parent))
    assert trouble(f"file:{key_file}") == f"its engine key is missing: {key_file}: No such file or directory"


def test_a_file_is_checked_at_intervals(key_file, monkeypatch):
    monkeypatch.setattr(whereabouts, "LOOK_S", 60.0)
    line(f"file:{key_file}")
    key_file.write_text("sk-engine-2")
    assert line(f"file:{key_file}") == b"authorization: Bearer sk-engine-1\r\n"


@pytest.mark.parametrize("content", ["", "\n", "two words", "two\nlines", "ä", "k\0", "x" * 5000])
def test_a_key_is_one_line_of_visible_characters(key_file, content, monkeypatch):
    key_file.write_text(content)
    for reference in (f"file:{key_file}", "env:AN_API_KEY"):
        if "\0" not in content:
            monkeypatch.setenv("AN_API_KEY", content)
        why = trouble(reference)
        assert why.startswith("its engine key ")
        assert not content.strip() or content.strip() not in why


def test_a_variable_that_is_not_set_is_named():
    assert trouble("env:NO_API_KEY") == (
        "its engine key is missing: the environment variable NO_API_KEY is not set or empty"
    )


def told(path):
    return trouble(f"file:{path}").replace(str(path), "PATH")


def test_without_allowed_folders_all_paths_fail_alike(tmp_path, key_file):
    key_file.write_text("two\nlines")
    (tmp_path / "empty").touch()
    own = tmp_path / "data" / "token"
    own.parent.mkdir()
    own.write_text("weir_token")
    paths = (tmp_path, tmp_path / "none", tmp_path / "empty", key_file, own, "/dev/null", "/proc")
    assert {told(path) for path in paths} == {
        "its engine key is missing: the file PATH cannot be read, or does not have up to 4096 visible characters; "
        "the reason is shown only where WEIR_ALLOWED_FOLDERS is set"
    }


def test_a_path_outside_the_listed_folders_reveals_nothing_else(tmp_path, key_file, monkeypatch):
    monkeypatch.setenv("WEIR_ALLOWED_FOLDERS", str(tmp_path / "keys"))
    paths = (tmp_path, tmp_path / "none", key_file, "/dev/null", "/proc")
    assert {told(path) for path in paths} == {"its engine key is missing: WEIR_ALLOWED_FOLDERS does not allow PATH"}


def test_secrets_of_weir_and_of_the_host_are_not_engine_keys(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIR_ALLOWED_FOLDERS", str(tmp_path))
    data = tmp_path / "data"
    data.mkdir()
    (data / "token").write_text("weir_token")
    link = tmp_path / "link"
    link.symlink_to(data / "token")
    for path in (data / "token", link, "/proc/self/cmdline", "/dev/null", tmp_path):
        assert "its engine key is missing" in trouble(f"file:{path}")
    assert trouble(f"file:{link}") == f"its engine key is missing: {link} is in {data}"


def test_the_data_folder_has_a_folder_for_keys(tmp_path):
    folder = tmp_path / "data" / "engine-keys"
    folder.mkdir(parents=True)
    (folder / "qwen").write_text(KEY)
    assert not trouble(f"file:{folder}/qwen")


def test_the_administrators_allow_lists_apply_to_keys(key_file, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("WEIR_ALLOWED_FOLDERS", f"/models, {tmp_path}/elsewhere")
    monkeypatch.setenv("WEIR_ALLOWED_VARIABLES", "QWEN_*")
    monkeypatch.setenv("QWEN_API_KEY", KEY)
    monkeypatch.setenv("LLAMA_API_KEY", KEY)
    assert trouble(f"file:{key_file}").endswith(f"WEIR_ALLOWED_FOLDERS does not allow {key_file}")
    assert trouble("env:LLAMA_API_KEY").endswith("WEIR_ALLOWED_VARIABLES does not allow LLAMA_API_KEY")
    assert not trouble("env:QWEN_API_KEY")
    (tmp_path / "lists").write_text(str(tmp_path))
    monkeypatch.setenv("WEIR_ALLOWED_FOLDERS_FILE", str(tmp_path / "lists"))
    assert not trouble(f"file:{key_file}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_named(key_file):
    key_file.chmod(0)
    assert trouble(f"file:{key_file}").endswith("Permission denied")


def test_the_clients_own_credentials_are_replaced(monkeypatch):
    monkeypatch.setenv("QWEN_API_KEY", KEY)
    lines = (
        b"authorization: Bearer mine\r\nx-api-key: mine\r\nApi-Key: mine\r\nx-authorization: stays\r\naccept: */*\r\n"
    )
    assert replaced(lines, "env:QWEN_API_KEY") == (
        b"authorization: Bearer sk-engine-1\r\nx-authorization: stays\r\naccept: */*\r\n"
    )
    with pytest.raises(EngineKeyMissing):
        replaced(lines, "env:NO_API_KEY")


@pytest.mark.parametrize(
    ("status", "reference", "says"),
    [
        (200, "", ""),
        (500, "env:QWEN_API_KEY", ""),
        (401, "", "the engine asks for a key, and none is named (engine_key: env:NAME or file:/PATH)"),
        (403, "env:QWEN_API_KEY", "GET /v1/models answers 403: the engine does not take the key of env:QWEN_API_KEY"),
        (401, "env:NO_API_KEY", "the environment variable NO_API_KEY is not set or empty"),
    ],
)
def test_a_refusal_says_what_to_do(status, reference, says, monkeypatch):
    monkeypatch.setenv("QWEN_API_KEY", KEY)
    assert says in refusal(status, "/v1/models", reference)
    assert bool(says) == bool(refusal(status, "/v1/models", reference))


def test_only_a_few_spellings_of_a_file_are_cached(key_file, monkeypatch):
    monkeypatch.setattr(whereabouts, "MOST", 3)
    for number in range(10):
        assert trouble(f"file:{key_file.parent}/{'./' * number}{key_file.name}") == ""
    assert len(whereabouts._files) <= 3
