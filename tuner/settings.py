"""The server's settings: from the command line, otherwise from environment variables, otherwise the defaults here."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tuner.core.problem.objective import FinalsProcedure
from tuner.core.trial.limits import Limits
from tuner.errors import InvalidInput

#: Maximum size of builds, artifacts, samples, counters and traces.
DEFAULT_DISK_LIMIT_BYTES = 8 * 2**30
#: How long a write waits for another one to end, seconds.
DEFAULT_LOCK_PATIENCE_S = 5.0
#: Maximum number of requests per second for a token, averaged over ten seconds.
DEFAULT_REQUESTS_PER_S = 300.0
#: Maximum number of connections; each event stream holds one.
DEFAULT_MAX_CONNECTIONS = 1000
#: A segment of a path, without characters that would be escaped in an address.
_STEP = re.compile(r"[A-Za-z0-9._~-]+")
_HEADER = re.compile("[A-Za-z0-9-]*")
#: The first segments of the service's own paths. If the root path began with one of them, requests would be ambiguous.
OWN_PATHS = frozenset(
    {
        *("artifacts", "audit", "batches", "best", "favicon.ico", "imports", "jobs", "livez", "login", "logout"),
        *("metrics", "openapi.json", "orders", "packs", "quotas", "readyz", "static", "targets", "tokens", "ui"),
        "whoami",
    }
)
#: Minimum length of a webhook's secret, characters.
_LEAST_SECRET = 16
#: Time limit for the head and for the body of a request, seconds each.
DEFAULT_REQUEST_DEADLINE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which ended jobs are kept; all by default."""

    #: How many days after their end jobs are kept; None means no limit.
    days: float | None = None
    #: How many of the newest jobs are kept; None means no limit.
    num_jobs: int | None = None
    #: Whether jobs whose results `GET /best` returns are always kept.
    keeps_best: bool = True

    @property
    def is_on(self) -> bool:
        """Whether anything is ever deleted."""
        return self.days is not None or self.num_jobs is not None

    def __str__(self) -> str:
        """The rule in words, for log lines and for records of deleted jobs."""
        limits = [
            *([f"those of the last {self.days:g} days"] if self.days is not None else []),
            *([f"the newest {self.num_jobs}"] if self.num_jobs is not None else []),
        ]
        return f"of the ended jobs, the server keeps {' and, of these, '.join(limits)}"


class Settings(BaseSettings):
    """Each setting is read from `TUNER_` and its name in capitals, e.g. `TUNER_PORT`."""

    model_config = SettingsConfigDict(env_prefix="TUNER_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="address to listen on; one beyond loopback requires tokens")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0 chooses a free one and prints it")
    data: Path = Field(default=Path("tuner-data"), description="folder for database, artifacts and build cache")
    fits: Path | None = Field(
        default=None,
        description=(
            "folder with the simulator's fits to your own cards, from `tuner fit`; default: `fits` in the data folder"
        ),
    )
    gpu: str = Field(
        default="auto",
        description="`auto`: this machine's GPUs, else a simulated H200; `simulated:<gpu>`, several with commas; "
        "`none`: measure nothing",
    )
    when: Literal["always", "idle"] = Field(
        default="always",
        description="when to measure on this machine's GPUs: `always`, or `idle`, only while nobody else uses them",
    )
    scheduler: str | None = Field(
        default=None,
        description="`tls://HOST:PORT` of a cluster's scheduler, whose workers measure; default: this machine measures",
    )
    tls: Path | None = Field(
        default=None, description="folder with certificates for the cluster, made by `tuner tls create`"
    )
    insecure: bool = Field(
        default=False, description="allow an address beyond loopback without tokens: anyone may do anything"
    )
    allowed_hosts: str = Field(
        default="",
        description="host names that browsers and programs use for the server, comma-separated; `*` for any",
    )
    trusted_proxies: str = Field(
        default="",
        description=(
            "addresses or networks of proxies whose X-Forwarded-For and -Proto "
            "are trusted, comma-separated; `*` for any"
        ),
    )
    login_header: str = Field(
        default="",
        description=(
            "header in which a proxy from `login_proxies` names the logged-in user, "
            "e.g. `X-Forwarded-User`; default: no such login"
        ),
    )
    login_proxies: str = Field(
        default="",
        description="addresses or networks of the proxies whose `login_header` is trusted, comma-separated",
    )
    login_role: Literal["read", "submit"] = Field(
        default="submit", description="role of users that a proxy names: `read` or `submit`"
    )
    login_admins: str = Field(default="", description="which of these users are admins, comma-separated")
    root_path: str = Field(
        default="",
        description="path under which a proxy serves the service, e.g. `/tuner`; all links begin with it",
    )
    requests_per_s: float = Field(
        default=DEFAULT_REQUESTS_PER_S,
        ge=0,
        description="requests per second that a token may send, averaged over ten seconds; 0 for no limit",
    )
    max_connections: int = Field(
        default=DEFAULT_MAX_CONNECTIONS,
        ge=1,
        description=(
            "maximum number of open connections; a further one replaces an idle one, or else its request gets a 503"
        ),
    )
    standby: bool = Field(
        default=False,
        description=(
            "share data folder and database with other servers; one runs the jobs, and another takes over if it fails"
        ),
    )
    database_url: str | None = Field(
        default=None, description="SQLAlchemy URL of the database; default: SQLite in the data folder"
    )
    disk_limit_bytes: int = Field(
        default=DEFAULT_DISK_LIMIT_BYTES,
        gt=0,
        description="maximum bytes of builds, artifacts, samples, counters and traces; the oldest are removed first",
    )
    keep_days: float | None = Field(
        default=None, gt=0, description="jobs that ended longer ago than this are deleted; default: jobs are kept"
    )
    keep_jobs: int | None = Field(
        default=None, ge=0, description="only this many of the newest ended jobs are kept; default: all are kept"
    )
    keep_best: bool = Field(
        default=True,
        description="whether `keep_days` and `keep_jobs` spare jobs whose results `GET /best` returns",
    )
    webhook_hosts: str = Field(
        default="",
        description="hosts that jobs may notify when they end, `name` or `name:port`, comma-separated",
    )
    webhook_secret: SecretStr = Field(
        default=SecretStr(""), description="secret that signs webhooks, at least 16 characters; required to send any"
    )
    webhook_networks: str = Field(
        default="",
        description="private networks that webhook hosts may resolve to, e.g. `10.0.0.0/8`, comma-separated",
    )
    lock_patience_s: float = Field(
        default=DEFAULT_LOCK_PATIENCE_S,
        gt=0,
        le=60,
        description=(
            "seconds that a write waits for another program's lock on the database, and for an "
            "earlier write; then the request gets a 503. It may wait for both"
        ),
    )
    request_deadline_s: float = Field(
        default=DEFAULT_REQUEST_DEADLINE_S,
        gt=0,
        le=3600,
        description=(
            "seconds within which the head and the body of a request must each arrive; then the connection is closed"
        ),
    )
    drain_deadline_s: float = Field(
        default=25.0,
        ge=0,
        description="seconds that a running trial or finals have to end after SIGTERM; then they are dropped",
    )
    simulated_latency_s: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="seconds that a simulated trial takes, so that there is something to watch",
    )
    simulated_build_s: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="seconds that a simulated build of a tiling takes",
    )
    max_ahead: int | None = Field(
        default=None,
        ge=0,
        description=(
            "maximum number of a job's candidates that are chosen and built while another one is measured; default: "
            "as many as keep the card busy; with 0 the same seed tries the same candidates"
        ),
    )
    search_processes: int | None = Field(
        default=None,
        ge=0,
        le=64,
        description=(
            "maximum number of processes that choose candidates; default: one per core, up to eight; one starts with "
            "the server, and more as more jobs are searched at once; with 0 the server process chooses them itself"
        ),
    )
    finals_rounds: int = Field(
        default=FinalsProcedure.num_rounds,
        description="rounds of the finals in each of the two processes; a quarter of them under sustained load",
    )
    tie_band: float = Field(
        default=FinalsProcedure.min_tie_band,
        description="relative difference below which two times are a tie, however narrow their interval is",
    )
    torch_baseline: bool = Field(
        default=False,
        description=(
            "whether PyTorch's own calls are timed after the finals of a job, on the same card, if PyTorch is installed"
        ),
    )
    spin_limit_cycles: int = Field(
        default=Limits.spin_limit_cycles,
        description="SM clock cycles that one wait of a kernel may last; then its candidate fails as a hang",
    )
    start_deadline_s: float = Field(
        default=Limits.start_deadline_s,
        description="seconds within which a process at a card, or a compiler, must start; then it is killed",
    )
    build_deadline_s: float = Field(
        default=Limits.build_deadline_s, description="seconds for one compilation; then the compiler is killed"
    )
    prepare_deadline_s: float = Field(
        default=Limits.prepare_deadline_s,
        description="seconds for inputs, references and baseline of a new problem; then the process is killed",
    )
    evaluate_deadline_s: float = Field(
        default=Limits.evaluate_deadline_s,
        description="seconds for one candidate; then the process is killed, and the candidate fails as a hang",
    )
    finals_deadline_s: float = Field(
        default=Limits.finals_deadline_s,
        description=(
            "seconds for all finalists of a search in each of the two processes; then the process is "
            "killed. For a study, as much again for every 16 additional schedules"
        ),
    )
    torch_compile_deadline_s: float = Field(
        default=Limits.torch_compile_deadline_s,
        description="additional seconds for torch.compile, if a job asks for it",
    )
    count_deadline_s: float = Field(
        default=Limits.count_deadline_s, description="seconds for all passes of the profiler; then it is killed"
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="`text` or `json`: one object per line, with its ids"
    )
    opentelemetry: bool = Field(
        default=False,
        description="whether requests and trials are sent as spans, as configured by the OTEL_ variables",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error"
    )

    @model_validator(mode="after")
    def _check_measuring(self) -> Self:
        try:
            _ = self.limits, self.finals
        except InvalidInput as error:
            raise ValueError(str(error)) from error
        return self

    @field_validator("root_path")
    @classmethod
    def _check_root_path(cls, path: str) -> str:
        steps = path.rstrip("/").split("/")
        if steps[0] or not all(_STEP.fullmatch(step) and step.strip(".") for step in steps[1:]):
            raise ValueError(f"root_path {path!a} is not a path; use one like /tuner, of letters, digits and -._~")
        if steps[1:2] and steps[1] in OWN_PATHS:
            raise ValueError(f"root_path {path} begins like a path of the service itself; use another one, e.g. /tuner")
        return "/".join(steps)

    @model_validator(mode="after")
    def _check_webhooks(self) -> Self:
        if self.webhook_hosts and len(self.webhook_secret.get_secret_value()) < _LEAST_SECRET:
            raise ValueError(f"webhook_hosts needs a webhook_secret of at least {_LEAST_SECRET} characters")
        for network in _words(self.webhook_networks):
            ip_network(network)
        return self

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if not _HEADER.fullmatch(self.login_header):
            raise ValueError(
                f"login_header {self.login_header!a} is not the name of a header; "
                "use letters, digits and -, e.g. X-Forwarded-User"
            )
        if bool(self.login_header) != bool(_words(self.login_proxies)):
            raise ValueError(
                "login_header and login_proxies need each other: a header is only trusted from listed proxies"
            )
        for network in _words(self.login_proxies):
            try:
                ip_network(network)
            except ValueError as error:
                raise ValueError(f"login_proxies: {error}; use addresses or networks, e.g. 10.0.0.7") from error
        return self

    @property
    def fits_folder(self) -> Path:
        """The folder with the fits that `tuner fit` wrote."""
        return self.data / "fits" if self.fits is None else self.fits

    @property
    def login_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The addresses from which `login_header` is trusted."""
        return tuple(ip_network(network) for network in _words(self.login_proxies))

    @property
    def login_admin_names(self) -> frozenset[str]:
        """Users who are admins."""
        return frozenset(_words(self.login_admins))

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names of the server in requests, in addition to `localhost` and numeric addresses."""
        return (*_words(self.allowed_hosts), *_words(self.host))

    @property
    def allowed_webhooks(self) -> tuple[frozenset[str], tuple[IPv4Network | IPv6Network, ...]]:
        """The hosts that webhooks may be sent to, and the private networks in which these hosts may be."""
        hosts = frozenset(host.lower() for host in _words(self.webhook_hosts))
        return hosts, tuple(ip_network(network) for network in _words(self.webhook_networks))

    @property
    def limits(self) -> Limits:
        """All time limits."""
        return Limits(**{field.name: getattr(self, field.name) for field in fields(Limits)})

    @property
    def retention(self) -> Retention:
        """Which jobs are kept."""
        return Retention(days=self.keep_days, num_jobs=self.keep_jobs, keeps_best=self.keep_best)

    @property
    def finals(self) -> FinalsProcedure:
        """How finals are run and judged."""
        return FinalsProcedure(num_rounds=self.finals_rounds, min_tie_band=self.tie_band)


def _words(text: str) -> list[str]:
    """The comma-separated items."""
    return [word.strip() for word in text.split(",") if word.strip()]


def is_loopback(host: str) -> bool:
    """Whether `host` is reachable only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
