"""The properties of a GPU that a schedule depends on: a catalogue by id, and facts read from a live card."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tuner.errors import InvalidInput

SIMULATED_PREFIX = "simulated:"


#: Cluster sizes that are queried for a live card: larger than a TPC, up to the maximum of a kernel.
ASKED_CLUSTERS = (4, 8, 16)
#: SMs per TPC, and the minimum and maximum number of SMs per GPC of an H100 or H200. Source: NVIDIA H100 Tensor Core
#: GPU Architecture white paper: up to 9 TPCs in a GPC; SXM5 boards have 66 in 8. It does not state the minimum; an H200
#: was measured to hold 30 clusters of 4 CTAs, which fits two GPCs of 14 SMs.
SMS_PER_TPC = 2
MIN_SMS_PER_GPC, MAX_SMS_PER_GPC = 14, 18


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU model. Rates are the data sheet's dense ones, not measurements."""

    #: Catalogue id, e.g. ``h200``.
    id: str
    #: Marketing name as the driver reports it, without the vendor.
    name: str
    #: Compute capability, e.g. (9, 0).
    compute_capability: tuple[int, int]
    #: Number of streaming multiprocessors.
    num_sms: int
    #: Shared memory per SM that CTAs can share, bytes.
    smem_per_sm_bytes: int
    #: Largest dynamic shared memory of one CTA (opt-in), bytes.
    smem_per_cta_bytes: int
    #: 32-bit registers per SM.
    registers_per_sm: int = 65536
    #: Maximum resident threads per SM.
    threads_per_sm: int
    #: L2 cache, bytes.
    l2_bytes: int
    #: DRAM, bytes.
    dram_bytes: int
    #: DRAM bandwidth, bytes per second.
    dram_bytes_per_s: float
    #: Dense fp16/bf16 tensor-core rate with fp32 accumulation, FLOP per second.
    tensor_flops_per_s: float
    #: Boost clock, MHz.
    clock_mhz: int
    #: For a live card: cluster sizes, and how many such clusters fit at once according to its driver. Empty for a
    #: model, since cards differ.
    live_clusters: tuple[tuple[int, int], ...] = field(default=(), repr=False)  # not included in the digest of a proof

    def num_clusters(self, cluster_size: int, reserved_sms: int = 0) -> int:
        """Number of clusters of `cluster_size` CTAs, one CTA per SM, that fit at once besides the reserved SMs: on a
        live card according to its driver, otherwise on every card of the model."""
        most = self.num_common_clusters(cluster_size)
        for size, held in self.live_clusters:
            if size == cluster_size:
                most = held
        return min((self.num_sms - reserved_sms) // cluster_size, most)

    def num_common_clusters(self, cluster_size: int) -> int:
        """Number of clusters that fit at once on every card of the model. A cluster must fit in one GPC."""
        in_all = self.num_sms // cluster_size
        if cluster_size <= SMS_PER_TPC:
            return in_all
        num_gpcs = -(-self.num_sms // MAX_SMS_PER_GPC)
        return min(in_all, num_gpcs * (MIN_SMS_PER_GPC // cluster_size))

    @property
    def as_any_card(self) -> Gpu:
        """A copy with the minimum number of clusters over all cards of its model: what fits it fits every card."""
        fewer = tuple(one for one in self.live_clusters if one[1] < self.num_common_clusters(one[0]))
        return self if fewer == self.live_clusters else replace(self, live_clusters=fewer)

    @property
    def arch(self) -> str:
        """NVRTC target, e.g. ``sm_90a``: the architecture-specific one where it exists and matters."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}" + ("a" if major == 9 else "")


#: Shared memory that the driver reserves per CTA, bytes (CUDA C++ Programming Guide, compute capabilities).
SMEM_RESERVED_PER_CTA_BYTES = 1024

_GIB = 2**30
_MIB = 2**20


#: Shared memory of an SM by compute capability. Source: CUDA C++ Programming Guide, table "Technical Specifications per
#: Compute Capability".
_SMEM_KIB = {(8, 0): 164, (8, 6): 100, (8, 9): 100, (9, 0): 228, (10, 0): 228, (12, 0): 100}


def smem_per_cta_bytes(capability: tuple[int, int]) -> int:
    """Shared memory that a CTA can have on every GPU of a compute capability in the catalogue."""
    return (_SMEM_KIB[capability] - 1) * 1024


def _gpu(
    id: str,
    name: str,
    capability: tuple[int, int],
    num_sms: int,
    threads_per_sm: int,
    l2_mib: float,
    dram_gib: int,
    dram_gb_per_s: float,
    tflops: float,
    clock_mhz: int,
) -> Gpu:
    """A row of the catalogue; shared memory follows from the compute capability.

    Source: NVIDIA data sheets and architecture white papers of each model.
    """
    return Gpu(
        id=id,
        name=name,
        compute_capability=capability,
        num_sms=num_sms,
        smem_per_sm_bytes=_SMEM_KIB[capability] * 1024,
        smem_per_cta_bytes=smem_per_cta_bytes(capability),
        threads_per_sm=threads_per_sm,
        l2_bytes=int(l2_mib * _MIB),
        dram_bytes=dram_gib * _GIB,
        dram_bytes_per_s=dram_gb_per_s * 1e9,
        tensor_flops_per_s=tflops * 1e12,
        clock_mhz=clock_mhz,
    )


CATALOGUE: dict[str, Gpu] = {
    gpu.id: gpu
    for gpu in (
        _gpu("a100", "A100-SXM4-80GB", (8, 0), 108, 2048, 40, 80, 2039, 312, 1410),
        _gpu("a40", "A40", (8, 6), 84, 1536, 6, 48, 696, 149.7, 1740),
        _gpu("rtx3050", "GeForce RTX 3050", (8, 6), 20, 1536, 2, 8, 224, 36.4, 1777),
        _gpu("rtx4090", "GeForce RTX 4090", (8, 9), 128, 1536, 72, 24, 1008, 165.2, 2520),
        _gpu("l40s", "L40S", (8, 9), 142, 1536, 96, 48, 864, 362.05, 2520),
        _gpu("rtx5090", "GeForce RTX 5090", (12, 0), 170, 1536, 96, 32, 1792, 209.5, 2407),
        _gpu("h100", "H100 80GB HBM3", (9, 0), 132, 2048, 50, 80, 3350, 989.4, 1980),
        _gpu("h200", "H200", (9, 0), 132, 2048, 60, 141, 4800, 989.4, 1980),
        _gpu("b200", "B200", (10, 0), 148, 2048, 126, 180, 8000, 2250, 1965),
    )
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A GPU to tune for; results of a simulated one are never returned for a real one."""

    gpu: Gpu
    #: True for the simulated GPU that needs no card.
    simulated: bool = False

    @property
    def id(self) -> str:
        """``h200``, or ``simulated:h200``."""
        return (SIMULATED_PREFIX if self.simulated else "") + self.gpu.id


def parse_target(target_id: str) -> Target:
    """The target called `target_id`, e.g. ``h200`` or ``simulated:h200``.

    Raises:
        InvalidInput: the catalogue has no GPU with that id.
    """
    simulated = target_id.startswith(SIMULATED_PREFIX)
    gpu = CATALOGUE.get(target_id.removeprefix(SIMULATED_PREFIX))
    if gpu is None:
        known = ", ".join(CATALOGUE)
        raise InvalidInput("target", f"there is no GPU called {target_id!r}", f"use one of {known}, or simulated:<id>")
    return Target(gpu=gpu, simulated=simulated)


@dataclass(frozen=True, kw_only=True)
class LiveFacts:
    """Properties of one card that a driver reports."""

    #: The name that the driver reports, e.g. ``NVIDIA H200``.
    name: str
    #: ``GPU-…``.
    uuid: str
    compute_capability: tuple[int, int]
    num_sms: int
    smem_per_sm_bytes: int
    smem_per_cta_bytes: int
    registers_per_sm: int
    threads_per_sm: int
    l2_bytes: int
    dram_bytes: int
    clock_mhz: int
    #: Cluster sizes, and how many such clusters the card holds at once; empty if the driver does not report them.
    clusters: tuple[tuple[int, int], ...] = ()
    #: Theoretical DRAM bandwidth from bus width and memory clock, or 0 if the driver does not report it.
    dram_bytes_per_s: float = 0.0


def _plain(name: str) -> str:
    return name.removeprefix("NVIDIA ").casefold()


def listed_gpu(name: str) -> Gpu | None:
    """The catalogue's entry for a card that the driver calls `name`, e.g. ``NVIDIA H200``; None if there is none."""
    matches = [gpu for gpu in CATALOGUE.values() if _plain(name).startswith(gpu.name.casefold())]
    return max(matches, key=lambda gpu: len(gpu.name)) if matches else None


def gpu_from_live(facts: LiveFacts) -> Gpu:
    """The catalogue's entry, corrected by what the card reports. An unlisted card gets its own id and the rates of the
    listed GPU with the nearest compute capability, scaled by its SMs and clock."""
    known = listed_gpu(facts.name)
    base = known or min(
        CATALOGUE.values(),
        key=lambda gpu: abs(
            10 * gpu.compute_capability[0] + gpu.compute_capability[1]
            - 10 * facts.compute_capability[0] - facts.compute_capability[1]
        ),
    )  # fmt: skip
    scale = facts.num_sms * facts.clock_mhz / (base.num_sms * base.clock_mhz)
    return replace(
        base,
        id=known.id if known else _plain(facts.name).replace(" ", "-"),
        name=facts.name.removeprefix("NVIDIA "),
        compute_capability=facts.compute_capability,
        num_sms=facts.num_sms,
        smem_per_sm_bytes=facts.smem_per_sm_bytes,
        smem_per_cta_bytes=facts.smem_per_cta_bytes,
        registers_per_sm=facts.registers_per_sm,
        threads_per_sm=facts.threads_per_sm,
        l2_bytes=facts.l2_bytes,
        dram_bytes=facts.dram_bytes,
        dram_bytes_per_s=base.dram_bytes_per_s if known else facts.dram_bytes_per_s or base.dram_bytes_per_s,
        tensor_flops_per_s=base.tensor_flops_per_s if known else base.tensor_flops_per_s * scale,
        clock_mhz=facts.clock_mhz,
        live_clusters=facts.clusters,
    )
