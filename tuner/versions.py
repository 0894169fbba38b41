"""The project's name for pip, and the version numbers of its public formats.

docs/compatibility.md says what may change without a new number.
"""

from __future__ import annotations

from tuner import __version__

#: The project's name for pip, where the name `tuner`, which commands and imports use, belongs to another project, for
#: musical instruments.
DISTRIBUTION = "fused-schedule-tuner"

#: Version of requests and responses. Increased when a field is removed or changes its meaning, or when valid requests
#: become invalid.
WIRE_VERSION = 2
#: The header with this version: in every response, and in requests that should be refused by any other version.
WIRE_HEADER = "Tuner-Wire-Version"

#: The header of downloads by digest: the service's signature of the bytes, as in packs.
SIGNATURE_HEADER = "Tuner-Signature"

#: Format of an artifact's manifest. Increased when a field is removed or changes its name or meaning. Format 1 called
#: `start_gate` `gate`. Format 3 has `attentions`, and no `kernel` without a product. Format 4 has `launch_order`;
#: before, each attention was launched before all products. Format 5 has `parameter.pages`; before, no product wrote to
#: pages. Format 6 has `own_launches`, for ops of other packages.
MANIFEST_FORMAT = 6
#: The format of manifests without ops of other packages.
PAGES_FORMAT = 5
#: The format of manifests without a product that writes to pages.
ORDERED_FORMAT = 4
#: The format of manifests whose attentions come first, or that write to a cache, which programs of that format can
#: read.
CACHES_FORMAT = 3
#: The format of manifests without attentions and caches.
PRODUCTS_FORMAT = 2

#: The programs' output for `--version`, in click's notation.
VERSION_MESSAGE = f"%(prog)s, version %(version)s; wire format {WIRE_VERSION}, manifest format {MANIFEST_FORMAT}"


def install_command(extra: str) -> str:
    """The command that installs the libraries of one of our extras, e.g. ``server``. It installs from a file, since
    tuner is not on PyPI."""
    wheel = f"{DISTRIBUTION.replace('-', '_')}-{__version__}-py3-none-any.whl"
    return f"pip install './{wheel}[{extra}]', or '.[{extra}]' in a checkout"
