"""A database that is reached by another address than loopback's, with TLS or without."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import trustme
from sqlalchemy import make_url

from spark_2pc_sink.testing.errors import CapabilityError
from spark_2pc_sink.testing.postgres import run_as
from tests.harness.pgbouncer import PgBouncer

#: Of TEST-NET-2 (RFC 5737): nothing is sent there, the kernel only says by which address it would be.
_FAR = ("198.51.100.1", 9)


def own_address() -> str:
    """An address of this machine that is not loopback's.

    Raises:
        CapabilityError: it has none.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(_FAR)
        except OSError as error:
            raise CapabilityError(f"this machine has no address but loopback's: {error}") from error
        return str(probe.getsockname()[0])


@contextmanager
def far_postgres(url: str, folder: Path) -> Iterator[str]:
    """The URL of a database by such an address, without sslmode; there TLS may be used, and need not.

    PgBouncer has TLS there, as the server of the wheel was built without. Libpq sees no difference.

    Args:
        url: of the database.
        folder: where the certificate of its authority is put, authority.pem.
    """
    address = own_address()
    direct = make_url(url)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    issued = authority.issue_cert(address)
    with TemporaryDirectory() as name:
        own = Path(name)
        issued.private_key_pem.write_to_path(own / "key.pem")
        (own / "certificate.pem").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        for path in (own, *own.iterdir()):
            if (user := run_as()) is not None:  # the pooler's
                os.chown(path, *user)
        pooler = PgBouncer(
            "session",
            host=str(direct.host),
            port=direct.port or 5432,
            user=str(direct.username),
            password=str(direct.password),
            settings={
                "listen_addr": f"127.0.0.1,{address}",
                "client_tls_sslmode": "allow",
                "client_tls_key_file": str(own / "key.pem"),
                "client_tls_cert_file": str(own / "certificate.pem"),
            },
        )
        with closing(pooler):
            pooler.start()
            yield direct.set(host=address, port=pooler.port).render_as_string(hide_password=False)
