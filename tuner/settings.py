"""The server's settings: from the command line, else from environment variables, else the defaults here."""

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

#: Builds, artifacts, samples, counters and traces may fill this much.
DEFAULT_DISK_LIMIT_BYTES = 8 * 2**30
#: A write waits so long for another one's end, seconds.
DEFAULT_LOCK_PATIENCE_S = 5.0
#: A token may send this many requests a second, in the mean over ten seconds.
DEFAULT_REQUESTS_PER_S = 300.0
#: This many connections are kept at a time; each event stream holds one.
DEFAULT_MAX_CONNECTIONS = 1000
#: What stands between two slashes of a path, without anything that an address would write otherwise.
_STEP = re.compile(r"[A-Za-z0-9._~-]+")
#: With what the service's own paths begin. Below a root path that begins so, a request would mean two things.
OWN_PATHS = frozenset(
    {
        *("artifacts", "audit", "batches", "best", "favicon.ico", "imports", "jobs", "livez", "login", "logout"),
        *("metrics", "openapi.json", "orders", "packs", "quotas", "readyz", "static", "targets", "tokens", "ui"),
        "whoami",
    }
)
#: Minimum length of a webhook's secret, characters.
_LEAST_SECRET = 16
#: Head and body of a request must each arrive in this many seconds.
DEFAULT_REQUEST_DEADLINE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which jobs that have ended are kept; all, unless something is given."""

    #: Days since their end; None for ever.
    days: float | None = None
    #: How many, the newest; None for all.
    num_jobs: int | None = None
    #: Whether those stay that `GET /best` answers with.
    keeps_best: bool = True

    @property
    def is_on(self) -> bool:
        """Whether anything is ever deleted."""
        return self.days is not None or self.num_jobs is not None

    def __str__(self) -> str:
        """For log lines, and for what is said of a deleted job."""
        limits = [
            *([f"those of the last {self.days:g} days"] if self.days is not None else []),
            *([f"the newest {self.num_jobs}"] if self.num_jobs is not None else []),
        ]
        return f"of jobs that have ended the server keeps {' and of these '.join(limits)}"


class Settings(BaseSettings):
    """Each is read from `TUNER_` and its name in capitals, e.g. `TUNER_PORT`."""

    model_config = SettingsConfigDict(env_prefix="TUNER_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="address to listen on; beyond loopback only with tokens")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0 takes a free one and prints it")
    data: Path = Field(default=Path("tuner-data"), description="folder of database, artifacts and build cache")
    fits: Path | None = Field(
        default=None,
        description="folder of the simulator's fits to one's own cards, of `tuner fit`; by default `fits` in the data "
        "folder",
    )
    gpu: str = Field(
        default="auto",
        description="`auto`: this machine's GPUs, else a simulated H200; `simulated:<gpu>`, several with commas; "
        "`none`: measure nothing",
    )
    when: Literal["always", "idle"] = Field(
        default="always",
        description="when this machine's GPUs are measured on: `always`, or `idle` while nobody else uses them",
    )
    scheduler: str | None = Field(
        default=None,
        description="`tls://HOST:PORT` of a cluster's scheduler, whose workers measure; by default this machine does",
    )
    tls: Path | None = Field(
        default=None, description="folder of certificates for the cluster, made by `tuner tls create`"
    )
    insecure: bool = Field(
        default=False, description="allow an address beyond loopback though there are no tokens: everybody may do all"
    )
    allowed_hosts: str = Field(
        default="",
        description="names by which browsers and programs may reach the server, commas between them; `*` for any",
    )
    trusted_proxies: str = Field(
        default="",
        description="addresses or networks of proxies whose X-Forwarded-For and -Proto are believed, commas between "
        "them; `*` for any",
    )
    login_header: str = Field(
        default="",
        pattern="^[A-Za-z0-9-]*$",
        description="header in which a proxy of `login_proxies` names the user whom it has let in, e.g. "
        "`X-Forwarded-User`; by default there is no such login",
    )
    login_proxies: str = Field(
        default="",
        description="addresses or networks of the proxies whose `login_header` is believed, commas between them",
    )
    login_role: Literal["read", "submit"] = Field(
        default="submit", description="what users may do whom a proxy names: `read` or `submit`"
    )
    login_admins: str = Field(default="", description="users of these who are admins, commas between them")
    root_path: str = Field(
        default="",
        description="path below which a proxy has the service on its site, e.g. `/tuner`; all links begin with it",
    )
    requests_per_s: float = Field(
        default=DEFAULT_REQUESTS_PER_S,
        ge=0,
        description="requests a second that a token may send, in the mean over ten seconds; 0 for any",
    )
    max_connections: int = Field(
        default=DEFAULT_MAX_CONNECTIONS,
        ge=1,
        description="connections that are kept at a time; a further one takes the place of one that asks nothing, else "
        "its request is a 503",
    )
    standby: bool = Field(
        default=False,
        description="share data folder and database with other servers; one runs the jobs, and another takes over",
    )
    database_url: str | None = Field(
        default=None, description="SQLAlchemy URL of the database; by default SQLite in the data folder"
    )
    disk_limit_bytes: int = Field(
        default=DEFAULT_DISK_LIMIT_BYTES,
        gt=0,
        description="most bytes of builds, artifacts, samples, counters and traces; oldest go first",
    )
    keep_days: float | None = Field(
        default=None, gt=0, description="jobs that ended longer ago are deleted; by default a job may be of any age"
    )
    keep_jobs: int | None = Field(
        default=None, ge=0, description="ended jobs beyond the newest so many are deleted; by default all are kept"
    )
    keep_best: bool = Field(
        default=True,
        description="whether `keep_days` and `keep_jobs` spare jobs whose result `GET /best` answers with",
    )
    webhook_hosts: str = Field(
        default="",
        description="hosts that jobs may have told of their end, `name` or `name:port`, commas between them",
    )
    webhook_secret: SecretStr = Field(
        default=SecretStr(""), description="by which webhooks are signed, at least 16 characters; needed for any"
    )
    webhook_networks: str = Field(
        default="",
        description="private networks that the names of webhook hosts may lead to, e.g. `10.0.0.0/8`, commas between",
    )
    lock_patience_s: float = Field(
        default=DEFAULT_LOCK_PATIENCE_S,
        gt=0,
        le=60,
        description="seconds that a request's write waits for another program's lock of the database, or for a "
        "write before it; then it is a 503. It may wait for both",
    )
    request_deadline_s: float = Field(
        default=DEFAULT_REQUEST_DEADLINE_S,
        gt=0,
        le=3600,
        description="seconds in which head and body of a request must each arrive; then the connection is closed",
    )
    drain_deadline_s: float = Field(
        default=25.0,
        ge=0,
        description="seconds that the trial or the finals at a card have to end after SIGTERM; then they are dropped",
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
        description="seconds that the build of a tiling takes where it is simulated",
    )
    max_ahead: int | None = Field(
        default=None,
        ge=0,
        description="candidates of a job that are chosen and built while another one is measured, at most; by default "
        "as many as keep the card busy; with 0 the same seed tries the same candidates",
    )
    search_processes: int | None = Field(
        default=None,
        ge=0,
        le=64,
        description="processes that choose candidates, at most; by default one for each core, up to eight; one starts "
        "with the server, and others as more jobs are searched at once; with 0 the server's own process does",
    )
    finals_rounds: int = Field(
        default=FinalsProcedure.num_rounds,
        description="rounds of the finals in each of their two processes, of which a quarter under sustained load",
    )
    tie_band: float = Field(
        default=FinalsProcedure.min_tie_band,
        description="relative distance below which two times are a tie, however narrow their interval is",
    )
    torch_baseline: bool = Field(
        default=False,
        description="whether the finals of a job are followed by PyTorch's own calls on the same card, where PyTorch "
        "is installed",
    )
    spin_limit_cycles: int = Field(
        default=Limits.spin_limit_cycles,
        description="SM clock cycles that one wait of a kernel may last; then its candidate failed as a hang",
    )
    start_deadline_s: float = Field(
        default=Limits.start_deadline_s,
        description="seconds until a process at a card, or a compiler, has started; then it is killed",
    )
    build_deadline_s: float = Field(
        default=Limits.build_deadline_s, description="seconds of one compile; then the compiler is killed"
    )
    prepare_deadline_s: float = Field(
        default=Limits.prepare_deadline_s,
        description="seconds for inputs, references and baseline of a new problem; then the process is killed",
    )
    evaluate_deadline_s: float = Field(
        default=Limits.evaluate_deadline_s,
        description="seconds for one candidate; then the process is killed, and the candidate failed as a hang",
    )
    finals_deadline_s: float = Field(
        default=Limits.finals_deadline_s,
        description="seconds for all finalists of a search in one of the two processes; then it is killed. A study has "
        "as much again for each 16 more of its schedules",
    )
    torch_compile_deadline_s: float = Field(
        default=Limits.torch_compile_deadline_s,
        description="seconds on top of these for torch.compile, where a job asks for it",
    )
    count_deadline_s: float = Field(
        default=Limits.count_deadline_s, description="seconds for all passes of the profiler; then it is killed"
    )
    log_format: str = Field(
        default="text", pattern="^(text|json)$", description="`text` or `json`: one object a line, with its ids"
    )
    opentelemetry: bool = Field(
        default=False,
        description="whether requests and trials are sent as spans, as the OTEL_ variables say",
    )
    log_level: str = Field(
        default="info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error"
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
            raise ValueError(f"root_path {path!a} is no path; give one like /tuner, of letters, digits and -._~")
        if steps[1:2] and steps[1] in OWN_PATHS:
            raise ValueError(f"root_path {path} begins as a path of the service itself; take another one, e.g. /tuner")
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
        if bool(self.login_header) != bool(_words(self.login_proxies)):
            raise ValueError("login_header and login_proxies need each other: a header is believed of listed proxies")
        for network in _words(self.login_proxies):
            try:
                ip_network(network)
            except ValueError as error:
                raise ValueError(f"login_proxies: {error}; give addresses or networks, e.g. 10.0.0.7") from error
        return self

    @property
    def fits_folder(self) -> Path:
        """Where `tuner fit` leaves what it makes."""
        return self.data / "fits" if self.fits is None else self.fits

    @property
    def login_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """From where `login_header` is believed."""
        return tuple(ip_network(network) for network in _words(self.login_proxies))

    @property
    def login_admin_names(self) -> frozenset[str]:
        """Users who are admins."""
        return frozenset(_words(self.login_admins))

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names that requests may give the server, beside `localhost` and addresses in digits."""
        return (*_words(self.allowed_hosts), *_words(self.host))

    @property
    def allowed_webhooks(self) -> tuple[frozenset[str], tuple[IPv4Network | IPv6Network, ...]]:
        """Hosts that webhooks may be sent to, and private networks that these may lie in."""
        hosts = frozenset(host.lower() for host in _words(self.webhook_hosts))
        return hosts, tuple(ip_network(network) for network in _words(self.webhook_networks))

    @property
    def limits(self) -> Limits:
        """How long anything may last."""
        return Limits(**{field.name: getattr(self, field.name) for field in fields(Limits)})

    @property
    def retention(self) -> Retention:
        """How long jobs are kept."""
        return Retention(days=self.keep_days, num_jobs=self.keep_jobs, keeps_best=self.keep_best)

    @property
    def finals(self) -> FinalsProcedure:
        """How finals are held and judged."""
        return FinalsProcedure(num_rounds=self.finals_rounds, min_tie_band=self.tie_band)


def _words(text: str) -> list[str]:
    """What stands between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
