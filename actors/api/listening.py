"""The address of a server, taken before anything else is loaded: what is wrong with it is known at once."""

import errno
import socket

from ...ipc.messages.config import ApiConfig


def bind(config: ApiConfig) -> socket.socket:
    """A socket bound to host and port, which does not listen yet. Raises ValueError when they cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # what is no name at all is a UnicodeError
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"host {config.host!r:.100} cannot be used: {reason}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise unusable(config, error) from None
    return sock


def unusable(config: ApiConfig, error: OSError) -> ValueError:
    """What to tell the user of a port that the system refuses."""
    reason = error.strerror or str(error)
    option = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
    return ValueError(f"port {config.port} of {config.host} cannot be used: {reason}; name another with {option}")
