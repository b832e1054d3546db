"""OpenTelemetry spans without its SDK: identity, sampling, OTLP/JSON. Pure; routers and the control plane share it."""
