"""What sets the endpoints of engines apart, beyond how their prompts are read (router/tokenize/prompt.py)."""

# Those whose answers are generated, with what limits the tokens of one
LIMITS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
# Those that engines answer without their model: any instance will do, and their times say nothing of it
UNCOMPUTED = ("/tokenize", "/detokenize", "/v1/messages/count_tokens")
