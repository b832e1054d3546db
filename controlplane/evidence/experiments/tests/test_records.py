from controlplane.evidence.experiments.results import records
from controlplane.evidence.experiments.tests.conftest import record


def test_a_record_that_was_appended_is_there_before_the_file_is_closed(tmp_path):
    appender = records.Appender(tmp_path / "run" / "requests.jsonl")
    appender.append(record(1))
    assert records.read(tmp_path / "run" / "requests.jsonl") == [record(1)]
    appender.close()


def test_a_cut_last_line_is_ignored(tmp_path):
    path = tmp_path / "requests.jsonl"
    appender = records.Appender(path)
    appender.append(record(1))
    appender.append(record(2, error="später"))
    appender.close()
    path.write_bytes(path.read_bytes()[:-20])
    assert records.read(path) == [record(1)]


def test_without_a_file_there_are_no_records(tmp_path):
    assert records.read(tmp_path / "nothing") == []
