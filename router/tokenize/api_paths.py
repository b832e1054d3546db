"""What sets the endpoints of engines apart, beyond how their prompts are read (router/tokenize/prompt.py)."""

# Paths whose answers are generated, with the fields that limit the tokens of an answer
LIMITS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
# Answered without the model: any instance will do, and the times say nothing about it
UNCOMPUTED = ("/tokenize", "/detokenize", "/v1/messages/count_tokens")
# Bodies with a file, as multipart/form-data
WITH_FILES = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/images/variations")
# Audio and images: no prompt is cached, so load decides
MEDIA = (*WITH_FILES, "/v1/audio/speech", "/v1/images/generations")
IMAGES = frozenset(path for path in MEDIA if path.startswith("/v1/images/"))
CLASSLESS = frozenset((*UNCOMPUTED, *MEDIA))  # their times belong to no class of prompts
