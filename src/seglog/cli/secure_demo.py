"""`seglog serve --secure-demo DIR`: an authority, a certificate and users, and how clients of five languages connect.

Secrets are in files of the directory, which only this user can read; programs and this output name the files. The
certificates are new at each start, the passwords stay.
"""

from __future__ import annotations

import os.path
import secrets
from collections.abc import Mapping
from contextlib import suppress
from string import Template
from typing import Final

from seglog.cli.options import OptionError
from seglog.core.addresses import Address, parse_host_port
from seglog.core.fs import OsFs, make_private_directory, write_private

USERS: Final = ("admin", "alice", "bob")
LISTENER: Final = "SASL_SSL"
_MECHANISM: Final = "SCRAM-SHA-512"
_ALWAYS: Final = ("localhost", "127.0.0.1", "::1")
_DEFAULT: Final = "127.0.0.1:9093"
_PASSWORD_BYTES: Final = 18
_JAVA: Final = Template("""\
bootstrap.servers=$bootstrap
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location=$ca
sasl.mechanism=$mechanism
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="$user" password="$password";
""")
_LIBRDKAFKA: Final = Template("""\
bootstrap.servers=$bootstrap
security.protocol=SASL_SSL
ssl.ca.location=$ca
sasl.mechanism=$mechanism
sasl.username=$user
sasl.password=$password
""")
_PROGRAMS: Final = Template("""\
Java, and Kafka's tools (--command-config):
    properties.load(new FileReader("$folder/alice.java.properties"));

Python (confluent-kafka), and seglog's commands (-F):
    config = dict(line.rstrip("\\n").split("=", 1) for line in open("$folder/alice.librdkafka.properties"))
    producer = Producer(config)

Rust (rdkafka):
    for line in read_to_string("$folder/alice.librdkafka.properties")?.lines() {
        if let Some((name, value)) = line.split_once('=') { config.set(name, value); }
    }

Go (franz-go):
    password, _ := os.ReadFile("$folder/alice.password")
    ca, _ := os.ReadFile("$ca")
    roots := x509.NewCertPool()
    roots.AppendCertsFromPEM(ca)
    client, err := kgo.NewClient(kgo.SeedBrokers("$bootstrap"), kgo.DialTLSConfig(&tls.Config{RootCAs: roots}),
        kgo.SASL(scram.Auth{User: "alice", Pass: string(password)}.AsSha512Mechanism()))

Node.js (kafkajs):
    const kafka = new Kafka({ brokers: ["$bootstrap"], ssl: { ca: [fs.readFileSync("$ca")] }, sasl: {
        mechanism: "scram-sha-512", username: "alice", password: fs.readFileSync("$folder/alice.password", "utf8") } });
""")


class SecureDemo:
    """Makes the files of a directory, which may be there already."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.ca = self._path("ca.pem")

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def keys(self, given: Mapping[str, str], listen: list[str]) -> dict[str, str]:
        """The broker's keys; ``given`` are other ones. `OptionError` if they name listeners."""
        if "listeners" in given and not listen:
            raise OptionError("--secure-demo makes a listener of its own: set none, or --listen HOST:PORT")
        try:
            wanted = [parse_host_port(text) for text in listen or [_DEFAULT]]
        except ValueError as error:
            raise OptionError(f"--listen: {error}") from error
        is_other = any("://" in text and not text.startswith(f"{LISTENER}://") for text in listen)
        if len(wanted) > 1 or is_other:
            raise OptionError("--secure-demo has one listener: --listen HOST:PORT")
        address = Address(LISTENER, wanted[0].host, wanted[0].port)
        make_private_directory(self.folder)
        store = self._issue(address.host)
        self._replace("users.properties", f"users={','.join(f'{user}={self._password(user)}' for user in USERS)}\n")
        if address.port:  # a client may connect as soon as the port is there
            self.write_clients(address.host_port)
        return {
            "listeners": str(address),
            "listener.security.protocol.map": f"{LISTENER}:{LISTENER}",
            "security.inter.broker.protocol": LISTENER,
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.location": store,
            "seglog.scram.users": f"${{file:{self._path('users.properties')}:users}}",
        }

    def write_clients(self, bootstrap: str) -> str:
        """Write the properties of clients; return what to tell the user."""
        for user in USERS:
            values = {
                "bootstrap": bootstrap,
                "ca": self.ca,
                "mechanism": _MECHANISM,
                "user": user,
                "password": self._password(user),
            }
            self._replace(f"{user}.java.properties", _JAVA.substitute(values))
            self._replace(f"{user}.librdkafka.properties", _LIBRDKAFKA.substitute(values))
        told = _PROGRAMS.substitute(folder=self.folder, ca=self.ca, bootstrap=bootstrap)
        return f"users: {', '.join(USERS)}; their passwords and properties are in {self.folder}\n\n{told}"

    def _issue(self, host: str) -> str:
        """A new authority and a broker's certificate; the key of the authority is forgotten."""
        from seglog.broker.security.demo_authority import DemoAuthority

        for name in ("ca.pem", "broker.pem", "broker.key", "broker.crt"):
            with suppress(FileNotFoundError):
                OsFs().unlink(self._path(name))
        hosts = dict.fromkeys([*_ALWAYS, *([host] if host else [])])
        return DemoAuthority(self.folder).issue("broker", list(hosts)).store

    def _password(self, user: str) -> str:
        from seglog.client.security.references import Secrets

        path = self._path(f"{user}.password")
        with suppress(FileExistsError):
            write_private(path, secrets.token_urlsafe(_PASSWORD_BYTES).encode())
        return Secrets().read_text("--secure-demo", path).strip()

    def _replace(self, name: str, text: str) -> None:
        path = self._path(name)
        with suppress(FileNotFoundError):
            if OsFs().read(path) == text.encode():
                return
            OsFs().unlink(path)
        write_private(path, text.encode())
