"""Section ``[planner]``: what is asked of the planning service."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from infinipipe_executor.config.section import MAX_COUNT, Seconds, Section


class PlannerConfig(Section):
    """Section ``[planner]``.

    Attributes:
        policy: How plans are made; empty means the planner's default.
        max_slice_count: Largest slice number K that is tried; 0 means ``pp_size`` + 4.
        connect_timeout_s: Longest wait for a planner to answer at all, and of a rank for a plan that others have.
        wait_timeout_s: Longest wait for one plan.
        profile: "measure" measures this machine at the start; otherwise a profile file.
        tls_ca: Authorities (PEM) that the planner's certificate is signed by; without them there is no TLS.
        tls_cert: The executor's own certificate (PEM), for mutual TLS.
        tls_key: Its private key (PEM).
        tls_server_name: Name in the planner's certificate; empty means the host of the planner's address.
        token_file: File of the token that the planner knows the run by.
    """

    policy: str = ""
    max_slice_count: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    connect_timeout_s: Seconds = 30.0
    wait_timeout_s: Seconds = 600.0
    profile: str = "measure"
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_server_name: str = ""
    token_file: Path | None = None
