"""Bearer tokens, compared in constant time, and names that a loopback server answers to."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable

from cortx.interfaces.server.http import HttpError
from cortx.interfaces.server.settings import Settings, is_loopback

Headers = Iterable[tuple[bytes, bytes]]
CHALLENGE = (b"www-authenticate", b'Bearer realm="cortx"')


class Guard:
    """Who may ask."""

    def __init__(self, settings: Settings) -> None:
        # Keyed digests have one length, whatever a caller sends, and say nothing about the tokens.
        self._key = secrets.token_bytes(32)
        self._digests = tuple(self._digest(token.encode("ascii")) for token in settings.tokens)
        # Without tokens, a name that leads here from a foreign web page must not open the door.
        self._local_names_only = settings.loopback and not settings.tokens and not settings.allow_public

    @property
    def needs_token(self) -> bool:
        return bool(self._digests)

    def _digest(self, token: bytes) -> bytes:
        return hmac.new(self._key, token, hashlib.sha256).digest()

    def check(self, headers: Headers) -> None:
        """Lets a request pass, or raises 401 (403 for a foreign name)."""
        if self._local_names_only:
            self.check_name(headers)
        if not self._digests:
            return
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1:
            raise _refused("this server needs a token: send the header Authorization: Bearer TOKEN")
        scheme, _, token = given[0].partition(b" ")
        if scheme.lower() != b"bearer":
            raise _refused("this server knows the scheme Bearer alone: Authorization: Bearer TOKEN")
        digest = self._digest(token.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them, always
        if not any(matches):
            raise _refused("this token is not known here")

    def check_name(self, headers: Headers) -> None:
        """A loopback server without tokens answers to loopback names alone."""
        if not self._local_names_only:
            return
        for name, value in headers:
            if name == b"host":
                host = value.decode("latin-1").lower()
                host = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
                if not is_loopback(host):
                    raise HttpError(403, "this server answers to localhost alone; behind a proxy start it with tokens")
                return


def _refused(text: str) -> HttpError:
    return HttpError(401, text, (CHALLENGE,))
