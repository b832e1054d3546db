"""Why a sign-in with the provider failed.

ProviderError
├── ProviderAway   the provider did not answer, or answered 5xx: try again
└── Refused        its answer or the person is not accepted; `code` stands in the audit log
"""


class ProviderError(Exception):
    pass


class ProviderAway(ProviderError):
    pass


class SignInRefused(ProviderError):
    """The sign-in is refused; `code` is one of REASONS."""

    def __init__(self, code: str, detail: str = "") -> None:
        self.code, self.detail = code, "".join(letter if letter.isprintable() else "?" for letter in detail)
        super().__init__(f"{code}: {self.detail}" if detail else code)

    @property
    def sentence(self) -> str:
        return REASONS[self.code]


# Sentences for the person who is signing in, by code
REASONS = {
    "not_started_here": "This sign-in was not started in this browser, or more than 10 minutes ago. Start again.",
    "provider_refused": "The identity provider did not sign you in.",
    "code_refused": "The identity provider did not accept the answer that it had sent. Start again.",
    "token_malformed": "The identity provider sent a token that cannot be read.",
    "algorithm": "The identity provider's token is signed in a way that is not accepted.",
    "unknown_key": "The identity provider's token is signed with a key that it does not publish.",
    "signature": "The signature of the identity provider's token is wrong.",
    "issuer": "The token was issued by another identity provider.",
    "audience": "The token was issued for another application.",
    "authorized_party": "The token was issued to another application.",
    "expired": "The token has expired. Check the clocks of Weir's host and of the identity provider.",
    "issued_later": "The token was issued in the future. Check the clocks of Weir's host and of the identity provider.",
    "nonce": "The token belongs to another sign-in. Start again.",
    "subject": "The identity provider does not say which account it is.",
    "not_a_logout": "The token is not a logout token.",
    "no_role": "Your account has no role in Weir. An administrator of your identity provider can give you one.",
    "address_unverified": "Your role in Weir goes by an address that the identity provider does not call verified.",
    "role_unknown": "The identity provider does not tell your role in Weir, and you have not signed in before.",
    "deactivated": "Your account is deactivated in Weir. An administrator of Weir can activate it.",
    "already_linked": "This identity belongs to another user of Weir.",
    "stays_local": "The user admin keeps its password: it is the way in without the identity provider.",
}
