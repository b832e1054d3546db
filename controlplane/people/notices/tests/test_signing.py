"""Signatures as Standard Webhooks specifies them."""

import base64
import hashlib
import hmac

from controlplane.people.notices.senders import signing

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_example_of_the_specification_gets_its_signature() -> None:
    """The example is from the Standard Webhooks repository, whose libraries are all tested with it."""
    body = b'{"test": 2432232314}'
    headers = signing.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body, [SECRET])
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_receiver_with_the_old_or_the_new_secret_finds_its_signature() -> None:
    old, new = signing.new_secret(), signing.new_secret()
    given = signing.headers("msg_1", 5, b"{}", [new, old])["webhook-signature"].split(" ")
    for secret, signature in zip((new, old), given, strict=True):
        key = base64.b64decode(secret.removeprefix("whsec_"))
        expected = base64.b64encode(hmac.new(key, b"msg_1.5.{}", hashlib.sha256).digest()).decode()
        assert signature == f"v1,{expected}"


def test_secrets_are_long_and_differ() -> None:
    assert len(base64.b64decode(signing.new_secret().removeprefix("whsec_"))) == 32
    assert signing.new_secret() != signing.new_secret()
