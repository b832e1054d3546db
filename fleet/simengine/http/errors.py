"""Error responses with vLLM's texts and codes."""


class ApiError(Exception):
    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


def unknown_model(name: str) -> ApiError:
    return ApiError(404, f"The model `{name}` does not exist.", kind="NotFoundError", param="model")


def unknown_rank(rank: int, ranks: int) -> ApiError:
    return ApiError(400, f"data_parallel_rank {rank} is out of range [0, {ranks}).")


def asleep() -> ApiError:
    return ApiError(503, "The engine is asleep; POST /wake_up first.", kind="ServiceUnavailableError")


def no_weights() -> ApiError:
    return ApiError(500, "The weights were discarded; POST /collective_rpc reload_weights.", kind="InternalServerError")


def bad_sleep(why: str, status: int = 400) -> ApiError:
    return ApiError(status, why, kind="BadRequestError" if status == 400 else "InternalServerError")


def too_long(window: int, prompt_tokens: int, max_tokens: int) -> ApiError:
    if prompt_tokens >= window:
        message = (
            f"This model's maximum context length is {window} tokens. However, your prompt contains {prompt_tokens} "
            "input tokens, which leaves no room for output tokens. Please reduce the length of the input prompt."
        )
        return ApiError(400, message, param="input_tokens")
    message = (
        f"This model's maximum context length is {window} tokens. However, you requested {max_tokens} output tokens "
        f"and your prompt contains {prompt_tokens} input tokens, for a total of {prompt_tokens + max_tokens} tokens. "
        "Please reduce the length of the input prompt or the number of requested output tokens."
    )
    return ApiError(400, message, param="max_tokens")
