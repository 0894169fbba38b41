"""What pip calls this project, and the numbers of the formats that leave it.

docs/compatibility.md says what may change under a number, and when a number grows.
"""

from __future__ import annotations

from tuner import __version__

#: Its name for pip. `tuner`, as commands and imports have it, is another project's name there: of musical instruments.
DISTRIBUTION = "fused-schedule-tuner"

#: Version of requests and answers. It grows when a field goes or changes its meaning, or when what was taken is
#: refused.
WIRE_VERSION = 2
#: The header that names it: of every answer, and of a request that wants to be refused by any other version.
WIRE_HEADER = "Tuner-Wire-Version"

#: The header of what is fetched by its digest: the service's signature of the bytes, as packs have it.
SIGNATURE_HEADER = "Tuner-Signature"

#: Format of an artifact's manifest. It grows when a field goes or changes its name or its meaning. Format 1
#: called `start_gate` `gate`. Format 3 has `attentions`, and without a product no `kernel`. Format 4 has
#: `launch_order`: before, each attention was launched before all products. Format 5 has `parameter.pages`: before, no
#: product wrote to pages. Format 6 has `own_launches`, of ops that other packages bring.
MANIFEST_FORMAT = 6
#: The same without such an op.
PAGES_FORMAT = 5
#: The same without a product that writes to pages.
ORDERED_FORMAT = 4
#: Format of a manifest whose attentions come first, or that writes to a cache, which programs of that format
#: read too.
CACHES_FORMAT = 3
#: The same without attentions and caches.
PRODUCTS_FORMAT = 2

#: What the programs print for `--version`, as click fills it in.
VERSION_MESSAGE = f"%(prog)s, version %(version)s; wire format {WIRE_VERSION}, manifest format {MANIFEST_FORMAT}"


def install_command(extra: str) -> str:
    """The command that brings the libraries of one of our extras, e.g. ``server``. It installs from a file, since PyPI
    does not have tuner."""
    wheel = f"{DISTRIBUTION.replace('-', '_')}-{__version__}-py3-none-any.whl"
    return f"pip install './{wheel}[{extra}]', or '.[{extra}]' in a checkout"
