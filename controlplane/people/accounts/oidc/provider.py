"""Requests to the identity provider: its metadata, its keys, tokens for a code, and a person's claims."""

import asyncio
import time
from base64 import b64encode
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx
import orjson

from controlplane.base.process.oidc_settings import OidcConfig, is_safe_url
from controlplane.people.accounts.oidc.errors import ProviderAway, SignInRefused
from router.contract.net.addresses import ENGINES
from router.contract.net.pinned_http import PinnedAnswer, ask

Json = dict[str, Any]
TIMEOUT_S = 5.0
METADATA_S = 3600.0  # cache time of its metadata and keys
KEYS_AGAIN_S = 60.0  # shortest interval between two requests for the keys because of unknown keys
MAX_ANSWER = 1 << 20  # bytes
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint", "end_session_endpoint")


class Provider:
    """An identity provider. Its metadata and keys are cached for an hour, in each web process."""

    def __init__(self, config: OidcConfig) -> None:
        self.config = config
        self._metadata: tuple[float, Json] = (0.0, {})
        self._keys: tuple[float, Json] = (0.0, {})

    def metadata(self) -> Json:
        """Return the provider's discovery document. Raise ProviderAway if it cannot be read or is another issuer's."""
        at, known = self._metadata
        if not known or time.monotonic() > at + METADATA_S:
            known = _checked(_get(self.config.issuer.rstrip("/") + "/.well-known/openid-configuration"), self.config)
            self._metadata = (time.monotonic(), known)
        return known

    def keys(self, again: bool = False) -> Json:
        """Return the provider's signing keys (a JWK set). Set `again` if the cached keys lack a token's key."""
        at, known = self._keys
        age = time.monotonic() - at
        if not known or age > METADATA_S or (again and age > KEYS_AGAIN_S):
            known = _get(self.metadata()["jwks_uri"])
            self._keys = (time.monotonic(), known)
        return known

    def sign_in_url(self, redirect_uri: str, state: str, nonce: str, challenge: str) -> str:
        asked = {
            "response_type": "code",
            "response_mode": "query",
            "client_id": self.config.client_id,
            "redirect_uri": redirect_uri,
            "scope": self.config.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return _with_query(self.metadata()["authorization_endpoint"], asked)

    def sign_out_url(self, id_token: str, back_to: str, state: str) -> str:
        """Return the sign-out URL; empty if the provider has none."""
        end = self.metadata().get("end_session_endpoint", "")
        asked = {
            "id_token_hint": id_token,
            "client_id": self.config.client_id,
            "post_logout_redirect_uri": back_to,
            "state": state,
        }
        return _with_query(end, asked) if end else ""

    def exchange(self, code: str, verifier: str, redirect_uri: str) -> Json:
        """Return the tokens for a code, at least `id_token`. Raise Refused if the provider rejects the code."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
            "client_id": self.config.client_id,
        }
        headers = {}
        if self.config.client_secret:
            methods = self.metadata().get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
            if "client_secret_basic" in methods:
                del form["client_id"]
                # RFC 6749, 2.3.1: both are form-encoded before they become user name and password.
                pair = quote_plus(self.config.client_id), quote_plus(self.config.client_secret)
                headers["Authorization"] = "Basic " + b64encode(":".join(pair).encode()).decode()
            else:
                form["client_secret"] = self.config.client_secret
        answer = _ask("POST", self.metadata()["token_endpoint"], headers, form)
        if answer.status != 200:
            raise SignInRefused("code_refused", _fault(answer))
        tokens = _json(answer)
        if not isinstance(tokens.get("id_token"), str):
            raise SignInRefused("code_refused", "no id_token in the answer")
        return tokens

    def userinfo(self, access_token: str, subject: str) -> Json:
        """Return the person's claims; empty without a userinfo endpoint. Raise Refused if they are another person's."""
        endpoint = self.metadata().get("userinfo_endpoint")
        if not endpoint or not access_token:
            return {}
        answer = _ask("GET", endpoint, {"Authorization": f"Bearer {access_token}"})
        if answer.status != 200 or not answer.content_type.startswith("application/json"):
            return {}
        claims = _json(answer)
        if claims.get("sub") != subject:
            raise SignInRefused("subject", "userinfo answers for another subject than the ID token")
        return claims


def _checked(metadata: Json, config: OidcConfig) -> Json:
    """Return the metadata after checking its issuer (OpenID Connect Discovery, 4.3) and its endpoints."""
    if metadata.get("issuer") != config.issuer:
        stated = str(metadata.get("issuer"))[:200]
        raise ProviderAway(f"its issuer is {stated!r}, WEIR_OIDC_ISSUER is {config.issuer!r}")
    for name in ENDPOINTS:
        url = metadata.get(name)
        if url is None and name in ("userinfo_endpoint", "end_session_endpoint"):
            continue
        if not isinstance(url, str) or not is_safe_url(url):
            raise ProviderAway(f"its {name} is {str(url)[:200]!r}; allowed is an https URL")
    return metadata


def _get(url: str) -> Json:
    answer = _ask("GET", url)
    if answer.status != 200:
        raise ProviderAway(f"{url} answered {answer.status}")
    return _json(answer)


def _ask(
    method: str, url: str, headers: dict[str, str] | None = None, form: dict[str, str] | None = None
) -> PinnedAnswer:
    """Return the answer of any status below 500. Redirects are not followed."""
    try:
        lines = {"Accept": "application/json", **(headers or {})}
        answer = asyncio.run(ask(method, url, ENGINES, TIMEOUT_S, MAX_ANSWER, headers=lines, data=form))
    except (TimeoutError, httpx.HTTPError) as error:
        raise ProviderAway(f"{urlsplit(url).netloc}: {error or 'no answer in time'}") from error
    if answer.status >= 500:
        raise ProviderAway(f"{url} answered {answer.status}")
    return answer


def _json(answer: PinnedAnswer) -> Json:
    try:
        found = orjson.loads(answer.body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ProviderAway("its answer is not a JSON object")
    return found


def _fault(answer: PinnedAnswer) -> str:
    """Return `error` and its description, as in RFC 6749."""
    try:
        found = orjson.loads(answer.body)
        return f"{found['error']}: {found.get('error_description', '')}"[:200].rstrip(": ")
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"status {answer.status}"


def _with_query(url: str, asked: dict[str, str]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(asked)}"
