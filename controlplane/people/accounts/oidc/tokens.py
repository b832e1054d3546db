"""Checks ID tokens and logout tokens of the identity provider.

Import it lazily: joserfc and cryptography are optional and take 0.2 s to import.
"""

from collections.abc import Mapping
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, JoseError
from joserfc.jwk import import_key

from controlplane.people.accounts.oidc.claims import text_of, time_of
from controlplane.people.accounts.oidc.errors import SignInRefused
from controlplane.people.accounts.oidc.provider import Json, Provider

# Excludes "none", and every algorithm whose key is the client's secret.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}  # key type by the first letters of the algorithm
LEEWAY_S = 60
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"


def id_token_claims(token: str, provider: Provider, nonce: str, now: float) -> Json:
    """Return the claims of an ID token (OpenID Connect Core, 3.1.3.7). Raise Refused if it is not for this sign-in."""
    claims = _signed(token, provider)
    _check_times(claims, now)
    _check_audience(claims, provider)
    if claims.get("nonce") != nonce:
        raise SignInRefused("nonce")
    _check_subject(claims)
    return claims


def logout_claims(token: str, provider: Provider, now: float) -> Json:
    """Return the claims of a logout token (OpenID Connect Back-Channel Logout, 2.6), with `sub`, `sid` or both. An
    empty `sid` selects no session; otherwise it would match every session without one.
    """
    claims = _signed(token, provider)
    _check_times(claims, now)
    _check_audience(claims, provider)
    events = claims.get("events")
    if "nonce" in claims or not isinstance(events, Mapping) or LOGOUT_EVENT not in events:
        raise SignInRefused("not_a_logout")
    if "sub" in claims or not text_of(claims, "sid"):
        _check_subject(claims)
    return claims


def _signed(token: str, provider: Provider) -> Json:
    """Return the claims, after checking the signature with the provider's keys, and the issuer."""
    accepted = provider.metadata().get("id_token_signing_alg_values_supported") or ["RS256"]
    algorithms = [name for name in ALGORITHMS if name in accepted]
    try:
        header = jws.extract_compact(token.encode()).protected
    except (JoseError, ValueError) as error:
        raise SignInRefused("token_malformed") from error
    if header.get("alg") not in algorithms:
        raise SignInRefused("algorithm", str(header.get("alg"))[:20])
    claims = _decoded(token, provider, header, algorithms)
    if claims.get("iss") != provider.config.issuer:
        raise SignInRefused("issuer", str(claims.get("iss"))[:200])
    return claims


def _decoded(token: str, provider: Provider, header: Mapping[str, Any], algorithms: list[str]) -> Json:
    for key in _candidates(provider, header):
        try:
            found: Json = jwt.decode(token, import_key(key), algorithms=algorithms).claims
            return found
        except BadSignatureError:
            continue
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise SignInRefused("token_malformed", type(error).__name__) from error
    raise SignInRefused("signature")


def _candidates(provider: Provider, header: Mapping[str, Any]) -> list[Json]:
    """Return the published keys that may have signed: the key named by the token, or else every key of the algorithm's
    type."""
    found = _matching(provider.keys(), header) or _matching(provider.keys(again=True), header)
    if not found:
        raise SignInRefused("unknown_key", str(header.get("kid"))[:100])
    return found


def _matching(keys: Json, header: Mapping[str, Any]) -> list[Json]:
    kind = KEY_TYPES[header["alg"][:2]]
    published = [key for key in keys.get("keys") or () if isinstance(key, dict)]
    signing = [key for key in published if key.get("kty") == kind and key.get("use", "sig") == "sig"]
    return [key for key in signing if key.get("kid") == header["kid"]] if "kid" in header else signing


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    if _time(claims, "exp") <= now - LEEWAY_S:
        raise SignInRefused("expired")
    begins = [_time(claims, "iat"), *([_time(claims, "nbf")] if "nbf" in claims else [])]
    if max(begins) > now + LEEWAY_S:
        raise SignInRefused("issued_later")


def _time(claims: Mapping[str, Any], name: str) -> float:
    at = time_of(claims, name)
    if at is None:
        raise SignInRefused("token_malformed", f"{name} is missing, or is no time in seconds")
    return at


def _check_audience(claims: Mapping[str, Any], provider: Provider) -> None:
    client, audience = provider.config.client_id, claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or client not in audiences:
        raise SignInRefused("audience")
    if claims.get("azp", client) != client or (len(audiences) > 1 and "azp" not in claims):
        raise SignInRefused("authorized_party")


def _check_subject(claims: Mapping[str, Any]) -> None:
    if not text_of(claims, "sub"):
        raise SignInRefused("subject", "sub is missing, or is not a text of 1 to 255 printable characters")
