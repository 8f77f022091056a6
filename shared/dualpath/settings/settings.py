"""The settings, typed and checked: a contradiction is an error, never silently resolved."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    JsonConfigSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from dualpath.settings.key_limits import KeyLimits
from dualpath.settings.places import default_home
from dualpath.settings.synthetic import SyntheticProfile
from dualpath.settings.units import parse_bytes, parse_rate
from dualpath.settings.vl import VlArbitration

Mode = Literal["basic", "pe-only", "dualpath", "oracle"]
ReadPathChoice = Literal["split", "adaptive", "prefill", "decode", "halves", "round-robin"]
PlacementChoice = Literal["adaptive", "least-tokens", "round-robin", "random"]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
Rate = Annotated[int, BeforeValidator(parse_rate), Field(gt=0)]

ApiKey = Annotated[str, Field(pattern=r"^[^=\s]+=[0-9a-fA-F]{64}$")]
ServiceLevel = Annotated[int, Field(ge=0, le=15)]
Dscp = Annotated[int, Field(ge=0, le=63)]
Priority = Annotated[int, Field(ge=0, le=2**31 - 1)]

AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]

NAMED_MODELS = ("smollm2", "tiny", "synthetic")
"""Models that `dualpath.model.prepare` makes; any other is a directory."""


def _absolute_model(model: str) -> str:
    return model if model in NAMED_MODELS else str(Path(model).expanduser().absolute())


ENV_PREFIX = "DUALPATH_"

settings_file: ContextVar[Path | None] = ContextVar("settings file", default=None)
"""What `Settings` are read from, beside the environment: TOML, or JSON where its name ends in .json."""


class Settings(BaseSettings):
    """Settings of a cluster. Sizes take `512MiB`, rates `50MB/s` or `400Gbps`; times are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    # What is served
    model: Annotated[str, AfterValidator(_absolute_model)] = Field(
        "smollm2", description="smollm2, tiny, synthetic, or a Hugging Face checkpoint directory"
    )
    served_name: str | None = Field(
        None, description="Name of the model in the API; default: its own"
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="auto: bfloat16 where the device computes it natively, else float32"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Device of the engines")
    threads: int = Field(0, ge=0, description="Threads per worker on a CPU; 0: all cores")
    max_context: int | None = Field(
        None, ge=2, description="Longest prompt plus output in tokens; default: the model's"
    )
    synthetic: SyntheticProfile = Field(
        SyntheticProfile(), description="Shape and speed of the synthetic engine, see below"
    )

    # Shape of the cluster
    prefill: int = Field(1, ge=1, le=64, description="Prefill nodes")
    decode: int = Field(1, ge=1, le=64, description="Decode nodes")
    engines: int = Field(1, ge=1, le=16, description="Engines per node")
    shards: int = Field(2, ge=1, le=64, description="Storage shards")
    gateways: int = Field(1, ge=1, le=16, description="Gateways")

    # Technique (paper §2, §5); None: what the mode says
    mode: Mode = Field("dualpath", description="Preset of the switches below")
    read_path: ReadPathChoice | None = Field(None, description="Which side reads cached KV")
    layerwise: bool | None = Field(
        None, description="Hold one layer's KV on the PE, not all layers'"
    )
    placement: PlacementChoice | None = Field(
        None, description="How requests are given to engines (docs/policies.md)"
    )
    ordering: Literal["fifo", "short-first"] = Field(
        "fifo",
        description="Who waits in front: who came first, or, within bounds, who has less to compute",
    )
    prefix_wait_s: float = Field(
        30.0,
        ge=0,
        description="A request whose prefix of 16 blocks or more another one computes waits so long at most for "
        "these to be stored, instead of computing them too; 0: not at all",
    )
    batching: Literal["token-budget", "quota"] | None = Field(
        None,
        description="What enters a prefill forward: chunk_tokens, or also no more attention than 300 ms of it by the "
        "node's profile",
    )
    ring_layers: int = Field(3, ge=2, le=16, description="Layers of a request on the PE at a time")
    chunk_tokens: int = Field(
        2048, ge=1, description="Tokens computed per prefill forward at most (chunked prefill)"
    )

    # Addresses and identity
    host: str = Field("127.0.0.1", description="Address to bind to")
    announce: str | None = Field(
        None, description="Address or name at which peers reach this process; default: host"
    )
    port: int = Field(8000, ge=0, le=65535, description="The gateway's port; 0: any free one")
    home: AbsolutePath = Field(
        default_factory=default_home,
        description="Everything that the cluster keeps: models, store, logs, run state",
    )
    nats_url: str | None = Field(None, description="A NATS server to use; default: start one")
    nats_user: str | None = Field(None, description="User at that server")
    nats_password: str | None = Field(None, repr=False, description="Password at that server")
    secret: str | None = Field(
        None,
        repr=False,
        description="Shared by all processes of the cluster; default: made at start",
    )
    tls: bool = Field(
        False,
        description="Encrypt the links between processes, as the certificate below does wherever it is set; "
        "where it is not, `dualpath up` makes one",
    )
    tls_certificate: AbsolutePath | None = Field(
        None, description="This process's certificate, with what leads to the CA; PEM"
    )
    tls_key: AbsolutePath | None = Field(None, description="Its key, not encrypted; PEM")
    tls_ca: AbsolutePath | None = Field(
        None, description="The CA that must have signed the certificates of all peers; PEM"
    )
    http_certificate: AbsolutePath | None = Field(
        None,
        description="Certificate of the API, with what leads to its CA; PEM. The gateways then speak HTTPS only",
    )
    http_key: AbsolutePath | None = Field(None, description="Its key, not encrypted; PEM")
    shard_addresses: tuple[str, ...] = Field(
        (), description="Storage shards as ID=HOST:PORT; set by `dualpath up`"
    )

    # Memory
    block_tokens: int = Field(64, ge=1, le=4096, description="Tokens of a KV block")
    prefill_buffer: Bytes = Field(1 << 30, description="PE buffer of a prefill node")
    decode_buffer: Bytes = Field(1 << 30, description="DE buffer of a decode node")
    write_back_blocks: int = Field(
        64, ge=1, description="DE buffer slots kept for blocks that decoding fills"
    )
    hot_tier: bool = Field(
        False,
        description="PE and DE buffers keep blocks in slots that nobody needs now, so that they are not read from "
        "storage again. Off in every mode: the paper keeps no KV in DRAM",
    )
    prefill_hbm: Bytes = Field(1 << 30, description="KV memory on each prefill device")
    decode_hbm: Bytes = Field(1 << 30, description="KV memory on each decode device")
    store: Literal["shards", "directory", "s3"] = Field(
        "shards",
        description="Where KV-Cache is kept: storage shards, a directory that all nodes mount, or an "
        "S3-compatible object store (docs/storage.md)",
    )
    store_capacity: Bytes | None = Field(
        None,
        description="Disk that the blocks of a shard, or of a directory, may take; those used longest ago give way. "
        "Default: all that there is",
    )
    store_replicas: int = Field(1, ge=1, le=8, description="Shards that keep a copy of each block")
    store_fsync: bool = Field(
        False, description="A block counts as stored only when it would survive a power loss"
    )
    store_sync_s: float = Field(
        1.0, gt=0, description="Blocks survive a power loss this long after they were stored"
    )
    store_ttl_s: float | None = Field(
        None, gt=0, description="Blocks that nobody has used for so long are given up"
    )
    store_direct: bool = Field(
        False, description="Shards read past the page cache (O_DIRECT), for fast disks"
    )
    store_directory: AbsolutePath | None = Field(
        None, description="That directory, where store is directory. Default: blocks, in home"
    )
    store_threads: int = Field(
        8, ge=1, le=256, description="File operations of a node at a time, where store is directory"
    )
    store_s3_bucket: str | None = Field(None, description="The bucket, where store is s3")
    store_s3_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s@]+$",
        description="URL of the S3-compatible server. Default: AWS",
    )
    store_s3_region: str | None = Field(
        None, description="Its region. Default: AWS_REGION, else us-east-1"
    )
    store_s3_prefix: str = Field("", description="What the names of all objects begin with")
    store_s3_access_key: str | None = Field(
        None,
        repr=False,
        description="Default: AWS_ACCESS_KEY_ID, or on AWS the machine's role",
    )
    store_s3_secret_key: str | None = Field(
        None, repr=False, description="Default: AWS_SECRET_ACCESS_KEY"
    )
    store_s3_timeout_s: float = Field(10.0, gt=0, description="A request to it ends after this")
    store_s3_requests: int = Field(
        32, ge=1, le=1024, description="Requests to it that a node has at a time"
    )
    store_s3_conditional: bool = Field(
        True,
        description="The server refuses to write what exists (If-None-Match); off: it is asked before",
    )

    # NICs; None: unlimited
    snic_bandwidth: Rate | None = Field(None, description="Emulated storage NIC of each node")
    cnic_bandwidth: Rate | None = Field(None, description="Emulated compute NIC of each engine")
    dram_bandwidth: Rate = Field(
        500 * 10**9,
        description="Host memory bandwidth of a node; only for the bottleneck-free check",
    )
    lanes: bool = Field(True, description="Virtual lanes; off: one lane for all")
    arbitration: Literal["weighted", "vl-tables"] = Field(
        "weighted", description="How lanes share a NIC: by `high_share`, or by InfiniBand's tables"
    )
    high_share: float = Field(0.99, gt=0, lt=1, description="Share of the high lane, by weights")
    vl_tables: VlArbitration = Field(
        VlArbitration(), description="InfiniBand's tables, where it is vl-tables; see below"
    )
    lane_dscp: tuple[Dscp, Dscp] = Field(
        (46, 8), description="DSCP of the high and of the low lane's packets"
    )
    lane_priority: tuple[Priority, Priority] = Field(
        (6, 1),
        description="SO_PRIORITY of the high and of the low lane's sockets; above 6, such as an htb class "
        "as major · 65536 + minor, the process needs CAP_NET_ADMIN",
    )
    quantum: Bytes = Field(
        256 * 1024,
        ge=4096,
        description="Bytes that a NIC sends per decision: fewer where they would take more than 5 ms, and no "
        "fewer than 4 MiB where it has no bandwidth",
    )

    # How KV moves between processes (docs/rdma.md)
    transport: Literal["tcp", "rdma"] = Field(
        "tcp",
        description="rdma: one-sided through NIXL, which the extra dualpath[rdma] installs; on all "
        "processes of a cluster the same",
    )
    same_host: Literal["shared-memory", "sockets"] = Field(
        "sockets",
        description="How KV moves over transport tcp between processes of one host: through its sockets, as between "
        "hosts, or (shared-memory) the receiver copies it out of the sender's memory, which it may read, not "
        "write. With tls, and between network namespaces, always sockets",
    )
    rdma_devices: tuple[str, ...] = Field(
        (),
        description="NICs as UCX names them (mlx5_0:1): of the SNIC, then of each engine's CNIC; the "
        "last serves those that follow. Default: all, or loopback where host is",
    )
    rdma_sl: tuple[ServiceLevel, ServiceLevel] | None = Field(
        None,
        description="InfiniBand service levels of the high lane and the low one. Default: UCX's",
    )

    # Times
    fetch_interval_s: float = Field(0.1, gt=0, description="A node reports at least so often")
    node_lost_s: float = Field(3.0, gt=0, description="Silence after which a node counts as lost")
    transfer_deadline_s: float = Field(
        5.0,
        ge=0.05,
        description="Silence after which a link is cut, and how long a peer may owe an answer without getting on",
    )
    read_deadline_s: float = Field(
        10.0,
        gt=0,
        description="A storage read gives up after this; a shard counts as lost that is asked which blocks it has "
        "and is silent for a fifth of it (2 s at least)",
    )
    done_grace_s: float = Field(
        0.5, ge=0, description="Wait for the last blocks' storage at the end"
    )
    request_deadline_s: float = Field(600.0, gt=0, description="A request is given up after this")
    max_attempts: int = Field(
        5, ge=1, description="Attempts at a request before its client gets an error"
    )
    start_s: float = Field(
        300.0,
        gt=0,
        description="Time for a process to become ready in, after which the start fails",
    )
    drain_s: float = Field(
        30.0,
        ge=0,
        description="A node that is told to stop (SIGTERM) takes nothing new, and finishes what it has, for so long "
        "at most",
    )
    stop_s: float = Field(
        5.0, gt=0, description="Time to stop in, after which processes are killed"
    )

    # Limits on clients
    api_keys: tuple[ApiKey, ...] = Field(
        (),
        description="Who may use the API, as NAME=HASH, the SHA-256 of the key in hexadecimal "
        "(`printf %s KEY | sha256sum`). Default: everybody",
    )
    max_requests: int = Field(
        4096, ge=1, description="Requests that a gateway has at a time; more get 429"
    )
    max_requests_per_key: int | None = Field(
        None, ge=1, description="Of those, one API key's. Default: all"
    )
    tokens_per_minute_per_key: int | None = Field(
        None,
        ge=1,
        description="Tokens, of prompts and answers, that an API key gets from each gateway. Default: no bound",
    )
    key_limits: dict[str, KeyLimits] = Field(
        {},
        description="What single keys may use, by the names in `api_keys`; see `[key_limits.NAME]`",
    )
    max_body: Bytes = Field(8 << 20, description="Longest request body")
    answer_memory: Bytes = Field(
        64 << 20,
        description="Of a gateway: token ids of answers that it gave, so that chats which send them back hit the "
        "blocks that generated them",
    )
    response_memory: Bytes = Field(
        64 << 20,
        description="Of a gateway: responses that clients may go on from, or ask for again",
    )
    max_queued: int = Field(10_000, ge=1, description="Requests that may wait in the scheduler")

    # Logs
    log_format: Literal["console", "json"] = Field(
        "console", description="console: for people; json: an object a line"
    )
    trace_forwards: bool = Field(
        False, description="Log each prefill forward: layers, overlap, times"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level of what is logged"
    )
    otel_endpoint: str | None = Field(
        None,
        pattern="^https?://.+",
        description="OpenTelemetry collector that gets the spans of requests, OTLP over HTTP: for example "
        "http://127.0.0.1:4318 (needs `pip install 'dualpath[otel]'`). Default: no spans are made",
    )
    log_bytes: Bytes = Field(
        64 << 20, description="A log file that grows to this is begun anew; the one before is kept"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line over environment over file."""
        path = settings_file.get()
        if path is None:
            return (init_settings, env_settings)
        kind = JsonConfigSettingsSource if path.suffix == ".json" else TomlConfigSettingsSource
        return (init_settings, env_settings, kind(settings_cls, path))

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        known = {entry.rpartition("=")[0] for entry in self.api_keys}
        if strangers := sorted(set(self.key_limits) - known):
            raise ValueError(
                f"key_limits has {', '.join(strangers)}, of which api_keys knows nothing; add the key, or leave "
                "its limits out"
            )
        if self.mode in ("basic", "pe-only") and self.read_path not in (None, "prefill"):
            raise ValueError(
                f"mode {self.mode} reads on the prefill side only, but read_path is {self.read_path}; "
                "use mode dualpath, or leave read_path out"
            )
        if self.mode == "basic" and self.layerwise:
            raise ValueError(
                "mode basic has no layerwise prefill; use mode pe-only, or leave it out"
            )
        if self.mode == "basic" and self.placement in ("adaptive", "least-tokens"):
            raise ValueError(
                "mode basic places round robin; use mode pe-only, or leave placement out"
            )
        if self.mode == "oracle" and self.model != "synthetic":
            raise ValueError(
                "mode oracle moves KV for free, which only --model synthetic can emulate"
            )
        if self.store != "shards" and (self.store_replicas > 1 or self.shard_addresses):
            raise ValueError(
                f"store is {self.store}, which has no shards; leave store_replicas and shard_addresses out, "
                "or set store to shards"
            )
        if self.store != "directory" and self.store_directory is not None:
            raise ValueError(
                f"store_directory is set, but store is {self.store}; set store to directory, or leave it out"
            )
        if self.store == "s3" and not self.store_s3_bucket:
            raise ValueError("store is s3, but store_s3_bucket is not set; name the bucket")
        if (self.store_s3_access_key is None) != (self.store_s3_secret_key is None):
            raise ValueError(
                "store_s3_access_key and store_s3_secret_key belong together; set both, or none"
            )
        if self.store == "s3" and self.store_capacity is not None:
            raise ValueError(
                "store_capacity is set, but room in an object store is made by the bucket's lifecycle rules; "
                "leave it out (docs/storage.md)"
            )
        if self.store == "s3" and self.store_ttl_s is not None:
            raise ValueError(
                "store_ttl_s is set, but objects age by the bucket's lifecycle rules; leave it out "
                "(docs/storage.md)"
            )
        # Processes that are started by hand have addresses; `shards` says nothing then.
        shards = len(self.shard_addresses) or self.shards
        if self.store_replicas > shards:
            raise ValueError(
                f"{shards} shards cannot keep {self.store_replicas} copies of a block; add shards, or "
                "lower store_replicas"
            )
        if self.nats_url is None and (self.nats_user or self.nats_password):
            raise ValueError(
                "nats_user and nats_password are for a server of your own; set nats_url too, or leave "
                "them out: a server that the cluster starts gets its own"
            )
        given = [self.tls_certificate, self.tls_key, self.tls_ca]
        if any(given) and not all(given):
            raise ValueError(
                "tls_certificate, tls_key and tls_ca belong together; set all three, or none"
            )
        if (self.http_certificate is None) != (self.http_key is None):
            raise ValueError("http_certificate and http_key belong together; set both, or neither")
        if self.transport == "rdma" and (self.tls or self.tls_certificate):
            raise ValueError(
                "tls encrypts links over TCP, but transport rdma moves KV past them; leave tls out, or use tcp"
            )
        if self.port and self.port + self.gateways - 1 > 65535:
            raise ValueError(
                f"{self.gateways} gateways from port {self.port} on need ports above 65535; "
                "choose a lower port, or 0 for any free ones"
            )
        return self

    @property
    def announced_host(self) -> str:
        """Where peers are told to dial this process."""
        return self.announce or self.host

    @property
    def use_shared_memory(self) -> bool:
        """Whether processes of one host read KV in each other's memory: beside plain TCP links only."""
        plain = self.transport == "tcp" and not (self.tls or self.tls_certificate)
        return plain and self.same_host == "shared-memory"

    @property
    def use_layerwise(self) -> bool:
        return self.mode != "basic" if self.layerwise is None else self.layerwise

    @property
    def use_read_path(self) -> ReadPathChoice:
        if self.read_path is not None:
            return self.read_path
        return "prefill" if self.mode in ("basic", "pe-only") else "split"

    @property
    def use_placement(self) -> PlacementChoice:
        if self.placement is not None:
            return self.placement
        return "round-robin" if self.mode == "basic" else "adaptive"

    @property
    def use_batching(self) -> Literal["token-budget", "quota"]:
        if self.batching is not None:
            return self.batching
        return "token-budget" if self.mode == "basic" else "quota"

    @property
    def nic_bandwidths(self) -> tuple[int | None, int | None]:
        """(SNIC, CNIC) in bytes per second. The oracle's transfers are free: its NICs are not paced."""
        if self.mode == "oracle":
            return None, None
        return self.snic_bandwidth, self.cnic_bandwidth
