"""What a server is told when it starts."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cortx.errors import InputError

MIB = 2**20


@dataclass(frozen=True)
class Settings:
    """Limits and addresses of one server; what cannot work is refused when it is built."""

    host: str = "127.0.0.1"
    port: int = 8080
    tokens: tuple[str, ...] = field(default=(), repr=False)
    allow_public: bool = False
    confidence: float | None = 0.9
    """Of the bounds that an answer has unless its request says otherwise; None for none."""
    max_queue: int = 8_192
    """Rows of one model that may wait or be worked on; past it requests are refused with 429."""
    max_rows: int = 1_024
    """Rows of one request."""
    max_body: int = 8 * MIB
    deadline: float = 30.0
    """Seconds in which an accepted request is answered or refused; a request may ask for less."""
    stall: float | None = None
    """Seconds past which a batch counts as hung: requests for its model get 503 and the server is not ready, until the
    call returns; None for twice the deadline."""
    body_seconds: float = 10.0
    """Seconds in which a request must have arrived whole."""
    linger: float = 5.0
    """Seconds after SIGTERM in which new requests are still answered while readiness already fails."""
    drain_seconds: float = 20.0
    """Seconds that a stopping server then takes at most to answer what it accepted."""
    watch_seconds: float = 1.0
    audit: float = 0.0
    """The share of requests that is explained again in the background."""
    audit_cpu: float = 0.1
    threads: int = 1
    """Threads of one forward pass."""
    log_requests: bool = False

    def __post_init__(self) -> None:
        least = {"max_queue": 1, "max_rows": 1, "max_body": 1_024, "threads": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise InputError(f"--{name.replace('_', '-')} must be at least {low}, got {getattr(self, name)}")
        for name in ("deadline", "body_seconds", "drain_seconds", "watch_seconds", "audit_cpu"):
            if not getattr(self, name) > 0:
                raise InputError(f"--{name.replace('_', '-')} must be above 0, got {getattr(self, name)}")
        if not 0 <= self.linger < math.inf:
            raise InputError(f"--linger must be a number of seconds, 0 or more, got {self.linger}")
        if self.stall is not None and not self.stall > 0:
            raise InputError(f"--stall must be above 0, got {self.stall}")
        if not 0 <= self.port <= 65_535:
            raise InputError(f"--port must be between 0 and 65535, got {self.port}")
        if self.audit_cpu > 1:
            raise InputError(f"--audit-cpu is a share of one core, at most 1, got {self.audit_cpu}")
        if not 0 <= self.audit <= 1:
            raise InputError(f"--audit must be a share between 0 and 1, got {self.audit}")
        if self.confidence is not None and not 0 < self.confidence < 1:
            raise InputError(f"--confidence must be between 0 and 1, got {self.confidence}")
        if not self.loopback and not self.tokens and not self.allow_public:
            raise InputError(
                f"--host {self.host} can be reached from other machines, so requests need tokens: give --token-file, "
                "or the variable CORTX_TOKENS; --allow-public serves everybody who can reach it"
            )

    @property
    def stall_seconds(self) -> float:
        return 2 * self.deadline if self.stall is None else self.stall

    @property
    def dead_seconds(self) -> float:
        """Seconds past which a hung batch makes liveness fail, so that whoever watches restarts the process."""
        return 2 * self.stall_seconds

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_tokens(file: Path | None, variable: str | None) -> tuple[str, ...]:
    """Tokens of a file, one a line, and of a variable, with spaces or commas between them."""
    found: list[str] = []
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--token-file {file} cannot be read: {error}") from error
        found += [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise InputError(f"--token-file {file} holds no token; write one a line")
    found += (variable or "").replace(",", " ").split()
    for token in found:
        if len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token:
            raise InputError("a token must have at least 8 characters, all of them printable ASCII without spaces")
    return tuple(dict.fromkeys(found))
