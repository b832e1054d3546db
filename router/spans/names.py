"""Names of OpenTelemetry's conventions for generative AI. The conventions are in development and have no release, so
all of them are kept here, as of open-telemetry/semantic-conventions-genai, commit 2e994c6d. Prompts and answers are
never exported."""

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
STREAM = "gen_ai.request.stream"  # written only if true
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"  # s
INPUT = "gen_ai.usage.input_tokens"  # including cached ones
CACHED = "gen_ai.usage.cache_read.input_tokens"
OUTPUT = "gen_ai.usage.output_tokens"
# From older versions, which traces from other senders may still use.
OLDER_INPUT = "gen_ai.usage.prompt_tokens"
OLDER_OUTPUT = "gen_ai.usage.completion_tokens"
CONVERSATION = "gen_ai.conversation.id"  # hash of a session

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


def operation(api_path: str) -> str:
    return _OPERATIONS.get(api_path) or api_path.rpartition("/")[2]
