"""Certificates, tokens and services that ask for them."""

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from infinipipe_planner.config import ServerConfig, TlsFiles
from support_service import CONFIG

ALICE = "alice-0123456789abcdef"
BOB = "bob-0123456789abcdef01"
TOKENS = f"# who may call\n\nalice {ALICE}\nbob {BOB}\n"


@dataclass(frozen=True)
class Files:
    """A folder of certificates of one authority, keys and tokens."""

    folder: Path
    authority: trustme.CA

    @property
    def ca(self) -> Path:
        path = self.folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(path))
        return path

    def issue(self, file: str, *names: str, not_after: datetime | None = None) -> tuple[Path, Path]:
        """Write a certificate for names, and its key; by default both are good for a day."""
        not_after = not_after or datetime.now(UTC) + timedelta(days=1)
        not_before = min(datetime.now(UTC), not_after) - timedelta(days=1)
        issued = self.authority.issue_cert(*names, not_before=not_before, not_after=not_after)
        cert, key = self.folder / f"{file}.pem", self.folder / f"{file}-key.pem"
        cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        write_secret(key, issued.private_key_pem.bytes())
        return cert, key

    def secret(self, file: str, text: str) -> Path:
        return write_secret(self.folder / file, text.encode())


def write_secret(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def tls_config(cert_and_key: tuple[Path, Path], client_ca: Path | None = None, tokens: str = "") -> ServerConfig:
    return dataclasses.replace(CONFIG, tls=TlsFiles(*cert_and_key, client_ca), tokens_text=tokens)
