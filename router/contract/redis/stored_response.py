"""The location of a stored response that a client may fetch or continue. Pure."""

import hashlib

from router.contract.redis.codec import RedisValue


class StoredResponse(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:response:<name>, expires; written by routers. The instance forgets its responses with its process."""

    pool: str
    instance: str
    epoch: int
    model: str = ""  # client's name of the model, if its engine has another


def name_of(key_id: str, response_id: str) -> str:
    """Return the name of a response in Redis, which depends on its API key; `key_id` is empty without one."""
    return hashlib.blake2b(f"{key_id}\0{response_id}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
