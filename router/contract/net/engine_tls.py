"""TLS to engines: trusted authorities, the name in the engines' certificates, and the client's certificate.
Certificates and keys are PEM text, of which Weir keeps only references (router/contract/net/whereabouts.py).
"""

import os
import re
import ssl
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import asdict

from router.contract.net.addresses import literal
from router.contract.net.outgoing import tls as of_system
from router.contract.net.tls_refusal import TlsRefused
from router.contract.net.whereabouts import Missing, Sought, is_named, read

OPTION = "tls"
SYSTEM = "system"
REFERENCE = "env:NAME, whose name has TLS in it, or file:/PATH"
ALLOWED = f"authorities ({SYSTEM}, or {REFERENCE}), certificate and key (likewise), and name (a host name)"
_REFERENCE = re.compile(r"env:(?=\w*TLS)[A-Za-z_]\w{0,199}|file:/[\w./@+~-]{1,1000}", re.ASCII)
_NAME = re.compile(
    r"(?=.{1,253}$)({0}\.)*{0}".replace("{0}", r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"), re.ASCII
)
_MOST = 256  # contexts in the cache


class EngineTls(Struct, frozen=True, omit_defaults=True):
    authorities: str = ""  # reference of the trusted authorities; empty: the system's
    certificate: str = ""  # reference of the client's certificate chain; it also holds the key unless `key` is set
    key: str = ""
    name: str = ""  # name in the engines' certificates; empty: the host of each URL

    @property
    def references(self) -> tuple[str, ...]:
        return tuple(one for one in (self.authorities, self.certificate, self.key) if one)


PLAIN = EngineTls()
_contexts: dict[EngineTls, tuple[tuple[bytes, ...], ssl.SSLContext]] = {}


def engine_tls(given: Mapping[str, str]) -> EngineTls:
    """Build the settings from a mapping that has passed `is_allowed`."""
    known = {name: value for name, value in given.items() if name in EngineTls.__struct_fields__}
    return EngineTls(**{**known, "authorities": known.get("authorities", "").removeprefix(SYSTEM)})


def is_allowed(given: Mapping[str, str]) -> bool:
    return not given.keys() - set(EngineTls.__struct_fields__) and all(
        _is_name(value) if name == "name" else _is_reference(value) or (name, value) == ("authorities", SYSTEM)
        for name, value in given.items()
    ) and ("key" not in given or "certificate" in given)  # fmt: skip


def _is_name(given: str) -> bool:
    """Return whether a certificate can have this name. A label too long for IDNA would make the handshake fail in the
    codec."""
    return _NAME.fullmatch(given) is not None or (literal(given) is not None and "%" not in given)


def _is_reference(given: str) -> bool:
    return _REFERENCE.fullmatch(given) is not None and is_named(given)


def context(given: EngineTls) -> ssl.SSLContext:
    """Return the TLS context for an engine; it is built again when a file or variable changes. Raise Missing or
    TlsRefused.
    Each name has its own context, so connections for another name are recognized by their context.
    """
    if given == PLAIN:
        return of_system()
    texts = tuple(read(reference, _sought(name)) if reference else b"" for name, reference in _named(given))
    known = _contexts.get(given)
    if known is None or known[0] != texts:
        if len(_contexts) >= _MOST:
            _contexts.clear()
        known = _contexts[given] = (texts, _made(*texts))
    return known[1]


def trouble(given: EngineTls) -> str:
    """Return why no TLS context can be built from these settings; empty if one can be built."""
    try:
        context(given)
    except (Missing, TlsRefused) as error:
        return error.strerror or str(error)
    return ""


def _named(given: EngineTls) -> list[tuple[str, str]]:
    return [(name, value) for name, value in asdict(given).items() if name != "name"]


def _sought(name: str) -> Sought:
    noun = {"authorities": "TLS authority", "certificate": "client certificate", "key": "client key"}[name]
    return Sought(noun, "PEM text of up to 1 MiB", 1 << 20, lambda raw: b"-----BEGIN " in raw)


def _made(authorities: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies chain and name by default
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if authorities:
            made.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))  # comments may be non-ASCII
        else:
            made.load_default_certs()
    except (ssl.SSLError, ValueError):
        raise TlsRefused("its TLS authority cannot be used: there is no certificate in it that can be read") from None
    if certificate:
        _show(made, certificate, key)
    return made


def _show(made: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a client certificate. OpenSSL reads certificates only from files, so the PEM text is written to an anonymous
    file in memory. The empty password keeps OpenSSL from prompting on the terminal for an encrypted key's password."""
    files = [_in_memory(text) for text in (certificate, key) if text]
    try:
        paths = [f"/proc/self/fd/{file}" for file in files]
        made.load_cert_chain(paths[0], paths[-1], password="")
    except ssl.SSLError as error:
        raise TlsRefused(f"its client certificate cannot be used: {_why(error)}") from None
    finally:
        for file in files:
            os.close(file)


def _why(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is that of another certificate"
    return "certificate and key must be PEM text, the key without a password"


def _in_memory(text: bytes) -> int:
    file = os.memfd_create("tls")
    os.write(file, text)
    return file
