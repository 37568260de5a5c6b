"""Encrypts the connection of two hosts by TLS without certificates.

The key exchange is anonymous: it proves no identity. An attacker between two hosts would have a separate connection to each host.
These connections have different bindings. `handshake` returns the binding, and each host proves to the other host that it sees
the same binding (`backend.multihost.wire`).
Source: RFC 5246 (TLS 1.2), RFC 5929 ("tls-unique"), RFC 7919 (the group in ffdhe3072.pem).
"""

import socket
import ssl
import threading
from pathlib import Path

_GROUP = Path(__file__).with_name("ffdhe3072.pem")
_PIECE = 2**20  # most bytes that are encrypted or received at once
_RECORD = 2**14  # most bytes that a record of TLS contains


class TlsConnection:
    """One end of an encrypted connection. One thread may send while another receives.

    OpenSSL allows only one call at a time, so a lock guards each call. Before Python 3.13, `ssl.SSLSocket` has no such lock.
    """

    def __init__(self, connection: socket.socket):
        self._socket, self._lock = connection, threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def handshake(self, is_server: bool) -> bytes:
        """Exchange keys and return the connection's binding, which is equal at both ends. Raises: OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        # TLS 1.3 has no anonymous key exchange. OpenSSL allows anonymous key exchange at security level 0 only. Level 0 also
        # allows weak ciphers, but this context offers only one cipher.
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ADH-AES256-GCM-SHA384:@SECLEVEL=0")
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        if is_server:
            context.load_dh_params(str(_GROUP))
        self._tls = context.wrap_bio(self._incoming, self._outgoing, is_server)
        is_done = False
        while not is_done:
            try:
                self._tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            self._socket.sendall(self._outgoing.read())
            if not is_done:
                self._receive()
        binding = self._tls.get_channel_binding("tls-unique")
        if not binding:
            raise ConnectionError("this connection has no binding")
        return binding

    def send(self, data: bytes) -> None:
        """Encrypt and send the bytes. Raises: OSError."""
        for start in range(0, len(data), _PIECE):
            with self._lock:
                self._tls.write(memoryview(data)[start : start + _PIECE])
                encrypted = self._outgoing.read()
            self._socket.sendall(encrypted)

    def read(self, size: int) -> bytes:
        """Wait for exactly `size` bytes and decrypt them. Raises: OSError."""
        data = bytearray()
        while len(data) < size:
            try:
                with self._lock:
                    piece = self._tls.read(min(size - len(data), _RECORD))
            except ssl.SSLWantReadError:
                self._receive()
                continue
            if not piece:  # the other end has ended TLS, but its socket is still open
                raise ConnectionError("closed")
            data += piece
        return bytes(data)

    def _receive(self) -> None:
        data = self._socket.recv(_PIECE)
        if not data:
            raise ConnectionError("closed")
        self._incoming.write(data)
