"""Explanations of TLS failures that say what to do. Pure."""

import errno
import ssl

_EXPIRED, _NOT_YET = (10,), (9,)  # numbers in OpenSSL's x509_vfy.h
_UNTRUSTED = (2, 18, 19, 20, 21)
_OTHER_NAME = (62, 64)
_SPEAKS_OTHER = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
_NONE_SHOWN = ("CERTIFICATE_REQUIRED",)
_SHOWN_REFUSED = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_EXPIRED", "CERTIFICATE_UNKNOWN", "CERTIFICATE_REVOKED")

# TLS 1.3 servers check a client's certificate after the handshake; uvicorn's then close the connection without an
# alert.
HINT = "; perhaps it asks for a client certificate, or refuses it (tls: certificate, key)"


class TlsRefused(ConnectionError):
    """One side of a TLS connection does not accept the other; the message is one sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EPROTO, why)


def explained(error: ssl.SSLError, host: str = "") -> str:
    """Explain the error. `host` is the name or address that the certificate must match."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {_of_certificate(error, host)}"
    reason = error.reason or ""
    if any(word in reason for word in _NONE_SHOWN):
        return "it asks for a client certificate, and none is named (tls: certificate, key)"
    if any(word in reason for word in _SHOWN_REFUSED):
        return f"it refuses the client certificate ({_words(reason)})"
    if any(word in reason for word in _SPEAKS_OTHER):
        return "it does not answer in TLS, as its address with https:// says"
    if "HANDSHAKE_FAILURE" in reason:
        return "it accepts no handshake: perhaps it asks for a client certificate (tls: certificate, key)"
    return f"TLS fails: {_words(reason) or 'the connection ended in the handshake'}"


def cause(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error that caused another error."""
    for _ in range(8):
        if error is None or isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _of_certificate(error: ssl.SSLCertVerificationError, host: str) -> str:
    code = error.verify_code
    if code in _EXPIRED:
        return "it has expired"
    if code in _NOT_YET:
        return "it is not valid yet, by this host's clock"
    if code in _OTHER_NAME:
        return f"it is not for {host}; set tls: name to the name that it is for"
    if code in _UNTRUSTED:
        return "no authority that is trusted here has signed it (tls: authorities)"
    return error.verify_message


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")
