# SPDX-License-Identifier: Apache-2.0
"""Off loopback both sides show a certificate, or there is no connection."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from firsttouch import InferenceClient, InferenceServer, Options, Tls
from firsttouch._session import deadline
from firsttouch.errors import AddressError, RefusedError, TransportError
from serving import SCHEMA, check, request, serve, served

LOOPBACK = "tcp://127.0.0.1:0"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, and a certificate for 127.0.0.1 of each: own.pem and strange.pem, with keys."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: it makes the certificates of these tests")
    folder = tmp_path_factory.mktemp("pem")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for name in ("own", "strange"):
        (folder / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1\n")
        authority = ("-keyout", f"{name}-ca.key", "-out", f"{name}-ca.pem", "-subj", f"/CN={name} authority")
        openssl("req", "-x509", *curve, *authority, "-days", "2", "-addext", "keyUsage=critical,keyCertSign")
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed_by = ("-CA", f"{name}-ca.pem", "-CAkey", f"{name}-ca.key", "-CAcreateserial")
        out = ("-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed_by, *out)
    return folder


def tls(pem: Path, name: str, authority: str = "own") -> Tls:
    """The files of NAME, which trusts AUTHORITY."""
    return Tls(f"{pem}/{name}.pem", f"{pem}/{name}.key", f"{pem}/{authority}-ca.pem")


def test_both_are_known(pem: Path) -> None:
    """With certificates of one authority requests are answered, large ones and many."""
    own = tls(pem, "own")
    with served(LOOPBACK, options=Options(tls=own)) as (where, _), InferenceClient(where, tls=own, lanes=3) as client:
        for number in range(50):
            check(number, client.infer(request(number), {"x": "y" * 1500})[0])


def test_requests_that_are_sent_again(pem: Path) -> None:
    """That one is taken is told before its answer, in whatever pieces TLS hands out."""
    own = tls(pem, "own")
    with (
        served(LOOPBACK, options=Options(tls=own)) as (where, _),
        InferenceClient(where, tls=own) as client,
        client.lane() as leased,
    ):
        lane = leased._lane
        for number in range(50):
            lane.write(request(number))
            lane.submit(b"", deadline(20), number % 2 > 0)
            leased.pending = True
            leased.result()
            assert lane.tried
            check(number, leased.reply)


def test_strangers(pem: Path) -> None:
    """Without TLS, or with a certificate of another authority, nobody is served; the server goes on."""
    with served(LOOPBACK, options=Options(tls=tls(pem, "own"))) as (where, _):
        for stranger in (None, tls(pem, "strange")):
            with pytest.raises(TransportError):
                InferenceClient(where, tls=stranger, timeout=3)
        address = where.removeprefix("tcp://").split(":")
        with socket.create_connection((address[0], int(address[1]))) as sock:
            sock.sendall(b"\x16\x03\x01garbage" * 20)
        with InferenceClient(where, tls=tls(pem, "own")) as client:
            check(1, client.infer(request(1))[0])


def test_a_strange_server(pem: Path) -> None:
    """A client does not talk to a server of another authority."""
    strange = Options(tls=tls(pem, "strange", "own"))
    with served(LOOPBACK, options=strange) as (where, _), pytest.raises(RefusedError, match="certificate"):
        InferenceClient(where, tls=tls(pem, "own"))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "[::]"])
def test_off_loopback(host: str) -> None:
    """Both sides refuse to go off loopback without TLS, before any packet."""
    with pytest.raises(RefusedError, match="without TLS"):
        InferenceServer(f"tcp://{host}:0", SCHEMA)
    with pytest.raises(RefusedError, match="without TLS"):
        InferenceClient(f"tcp://{host}:5555")


def test_files_that_are_none(tmp_path: Path) -> None:
    """Files that are missing or no PEM are named."""
    (tmp_path / "x.pem").write_text("no")
    wrong = Tls(f"{tmp_path}/x.pem", f"{tmp_path}/x.pem", f"{tmp_path}/x.pem")
    for made in (wrong, Tls("/no/such", "/no/such", "/no/such")):
        with pytest.raises(AddressError, match="cannot be used"):
            InferenceServer(LOOPBACK, SCHEMA, options=Options(tls=made))


def test_only_for_tcp(pem: Path, tmp_path: Path) -> None:
    """TLS over a unix socket is a mistake and said to be one."""
    with pytest.raises(AddressError, match="needs no TLS"):
        InferenceServer(f"unix://{tmp_path}/x", SCHEMA, options=Options(tls=tls(pem, "own")))


def test_beside_a_unix_socket(pem: Path, tmp_path: Path) -> None:
    """A server may have both: TLS is for its tcp address, the unix socket goes without."""
    own = tls(pem, "own")
    places = [f"unix://{tmp_path}/x", LOOPBACK]
    with InferenceServer(places, SCHEMA, options=Options(tls=own)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        for where, given in zip(server.addresses, (None, own), strict=True):
            with InferenceClient(where, tls=given) as client:
                check(7, client.infer(request(7))[0])
        server.stop()
        thread.join()
