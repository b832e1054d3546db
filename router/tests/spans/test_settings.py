"""OpenTelemetry's variables configure spans; a wrong one ends the start with one line."""

import pytest

from router.spans import settings

ON = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def read(**changes: str) -> settings.SpanSettings | None:
    return settings.read(ON | changes, "weir-router")


def test_without_an_endpoint_spans_are_off() -> None:
    assert settings.read({}, "weir-router") is None
    assert settings.read({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "weir-router") is None
    assert read(OTEL_SDK_DISABLED="true") is None
    assert read(OTEL_TRACES_EXPORTER="none") is None


def test_the_general_endpoint_gets_the_path_appended_and_that_for_traces_is_used_unchanged() -> None:
    at = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://other/custom"}
    assert read() == settings.SpanSettings("http://collector:4318/v1/traces", resource={"service.name": "weir-router"})
    assert [one.url for one in (read(**at), read(OTEL_EXPORTER_OTLP_ENDPOINT="http://c/base/")) if one] == [
        "https://other/custom",
        "http://c/base/v1/traces",
    ]


def test_every_setting_is_read() -> None:
    made = read(
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20secret,x-tenant=a",
        OTEL_EXPORTER_OTLP_TIMEOUT="2000",
        OTEL_EXPORTER_OTLP_TRACES_COMPRESSION="gzip",
        OTEL_EXPORTER_OTLP_COMPRESSION="none",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/json",
        OTEL_SERVICE_NAME="edge",
        OTEL_RESOURCE_ATTRIBUTES="service.name=lost,deployment.environment.name=prod%2Ceu",
        OTEL_TRACES_SAMPLER="always_on",
        OTEL_TRACES_SAMPLER_ARG="0.5",
        OTEL_BSP_SCHEDULE_DELAY="1000",
        OTEL_BSP_MAX_QUEUE_SIZE="100",
        OTEL_BSP_EXPORT_TIMEOUT="1500",
        WEIR_SPANS_PER_S="7",
        WEIR_SPANS_ERRORS="1",
    )
    assert made == settings.SpanSettings(
        url="http://collector:4318/v1/traces",
        headers=(("authorization", "Bearer secret"), ("x-tenant", "a")),
        timeout_s=1.5,
        gzip=True,
        resource={"service.name": "edge", "deployment.environment.name": "prod,eu"},
        sampler="always_on",
        ratio=0.5,
        per_s=7,
        errors=True,
        delay_s=1.0,
        most=100,
        batch=100,
    )
    assert "secret" not in repr(made)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/json"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf", "http/json"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "br", "none and gzip"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "http[s]://HOST"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://user:secret@host/", "without user"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://host:99999", "http[s]://HOST"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "secret", "KEY=VALUE"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=secret%0d%0ab", "printable"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1.5", "1 to 1000000"),
        ("OTEL_RESOURCE_ATTRIBUTES", "x", "KEY=VALUE"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp and none"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan", "0 to 1"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "1 to 1000000"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096", "1 to 2048"),
        ("OTEL_SDK_DISABLED", "yes please", "true"),
        ("WEIR_SPANS_PER_S", "-1", "1 to 1000000"),
    ],
)
def test_a_wrong_setting_is_reported_in_one_line_with_the_allowed_values(name: str, value: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=name) as raised:
        read(**{name: value})
    told = str(raised.value)
    assert allowed in told
    assert "\n" not in told
    assert "secret" not in told
