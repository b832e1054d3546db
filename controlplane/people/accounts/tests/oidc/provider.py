"""An identity provider on loopback: discovery, keys, codes with PKCE, tokens, userinfo; it can be made to lie."""

import base64
import hashlib
import json
import secrets
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from controlplane.people.accounts.oidc.tokens import LOGOUT_EVENT

CLIENT, SECRET = "weir", "s3cret&more"
BASIC = "Basic " + base64.b64encode(b"weir:s3cret%26more").decode()


@cache
def rsa_key(kid, number=1):
    """All tests of a process share it, as creating one takes 0.1 s."""
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


class FakeProvider:
    """`claims` are those of the person; `lie` replaces claims of the token, `header` its header, `key` its signing
    key."""

    def __init__(self):
        self.key = rsa_key("one")
        self.published = [self.key]
        self.claims = {"sub": "u-1", "preferred_username": "grace", "groups": ["ml-research"]}
        self.userinfo = {"sub": "u-1"}
        self.lie, self.header, self.away, self.asked = {}, {"alg": "RS256", "kid": "one"}, False, []
        self.codes = {}  # code: (challenge, nonce, redirect_uri); each can be used once
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.issuer = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def metadata(self):
        names = {"authorization": "authorize", "token": "token", "userinfo": "me", "end_session": "end"}
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/jwks",
            "id_token_signing_alg_values_supported": ["RS256", "ES256", "HS256", "none"],
            "authorization_response_iss_parameter_supported": True,
            **{f"{name}_endpoint": f"{self.issuer}/{path}" for name, path in names.items()},
        }

    def consent(self, url):
        """Sign the person in at the provider; return the query of the redirect back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe()
        self.codes[code] = (asked["code_challenge"], asked["nonce"], asked["redirect_uri"])
        return {"code": code, "state": asked["state"], "iss": self.issuer}

    def token(self, **claims):
        now = int(time.time())
        stated = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, **claims, **self.lie}
        if self.header["alg"] == "none":
            parts = [json.dumps(part).encode() for part in (self.header, stated)]
            return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."
        key = OctKey.import_key(SECRET * 4) if self.header["alg"] == "HS256" else self.key
        return jwt.encode(self.header, {name: value for name, value in stated.items() if value is not None}, key)

    def logout_token(self, **claims):
        return self.token(events={LOGOUT_EVENT: {}}, jti=secrets.token_hex(4), **claims)

    def exchange(self, form, authorization):
        challenge, nonce, redirect_uri = self.codes.pop(form.get("code", ""), ("", "", ""))
        proof = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if (proof, form["redirect_uri"], authorization) != (challenge, redirect_uri, BASIC):
            return 400, {"error": "invalid_grant", "error_description": "used or unknown"}
        return 200, {"id_token": self.token(nonce=nonce, sid="s-1", **self.claims), "access_token": "opaque"}

    def _handler(provider):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                provider.asked.append(self.path)
                pages = {
                    "/.well-known/openid-configuration": provider.metadata,
                    "/jwks": lambda: {"keys": [key.as_dict(private=False) for key in provider.published]},
                    "/me": lambda: provider.userinfo,
                }
                self.answer(200, pages[self.path]())

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                self.answer(*provider.exchange(form, self.headers["authorization"]))

            def answer(self, status, content):
                body = json.dumps(content).encode()
                self.send_response(500 if provider.away else status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler
