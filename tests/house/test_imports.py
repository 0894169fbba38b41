"""Allowed imports: the third-party libraries of each package, and what the base install must do without.

import-linter checks the rules between our own packages (pyproject.toml) in `make lint`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: The longest prefix counts. A sibling may have its own library; unlisted modules may import none.
LIBRARIES: dict[str, set[str]] = {
    "tuner/core": {"numpy"},
    "tuner/errors.py": set(),
    "tuner/ops": set(),
    "tuner/ops/attention": {"numpy"},
    "tuner/ops/attention/card": {"numpy", "cupy", "cuda", "torch"},
    "tuner/ops/conv": {"numpy"},
    "tuner/ops/conv/pair/card": {"cupy"},
    "tuner/ops/conv/pooling/card.py": {"cupy"},
    "tuner/ops/gemm/card": {"cupy", "cuda", "torch"},
    "tuner/search": {"optuna", "numpy", "threadpoolctl"},
    "tuner/store": {"sqlalchemy", "alembic"},
    "tuner/store/results/shapes.py": {"numpy", "sqlalchemy"},  # distances to thousands of shapes
    "tuner/dispatch": set(),
    "tuner/packs": set(),
    "tuner/runtime": set(),
    "tuner/runtime/checkpoints": {"numpy"},  # quantised weights of a checkpoint, on their way to a card
    "tuner/runtime/torch_compiled.py": {"torch"},
    "tuner/runtime/torch_attention.py": {"torch"},
    "tuner/runtime/torch_program.py": {"torch"},
    "tuner/runtime/pytorch/found.py": {"torch"},
    "tuner/runtime/pytorch/formula.py": {"torch"},
    "tuner/runtime/torch_layer.py": {"torch"},
    "tuner/runtime/pytorch/operands.py": {"torch"},
    "tuner/runtime/pytorch/scaled.py": {"torch", "numpy"},
    "tuner/runtime/models": {"torch", "transformers"},  # imported only by `patch`
    "tuner/runtime/torch_op.py": {"torch"},  # the operator of PyTorch, imported only by its users
    "tuner/vllm": {"torch", "vllm"},  # an installation with vLLM has both
    "tuner/vllm/norms/kernel.py": {"torch", "triton"},  # vLLM for a GPU includes Triton
    "tuner/dispatch/cluster": {"distributed", "dask"},
    "tuner/dispatch/cluster/certificates.py": {"cryptography"},
    "tuner/dispatch/cluster/messages.py": {"pydantic"},
    "tuner/service": set(),
    "tuner/service/metrics.py": {"prometheus_client"},
    "tuner/service/webhooks/network.py": {"httpcore"},  # so that the address of a name can be checked
    "tuner/logs.py": {"pythonjsonlogger"},
    "tuner/server/telemetry.py": {"opentelemetry"},
    "tuner/wire": {"pydantic"},
    "tuner/api": {"fastapi", "starlette", "sse_starlette", "jinja2", "pydantic", "anyio", "itsdangerous"},
    "tuner/api/pictures": {"numpy"},
    "tuner/api/pages/trial_pages.py": {"fastapi", "pygments", "starlette"},  # colours of sources
    "tuner/api/http/connection.py": {"h11", "uvicorn"},  # the server's own protocol, with a deadline
    "tuner/client": {"httpx", "click", "rich"},
    "tuner/client/exports/study.py": {"optuna"},  # imported on demand, since an extra installs it
    "tuner/python": {"rich"},
    "tuner/python/bars.py": {"rich", "IPython"},  # part of a notebook's kernel, imported there
    "tuner/python/here.py": {"anyio", "fastapi", "httpx"},  # installed by the extra for the server
    "tuner/packs/signing.py": {"cryptography"},  # imported on demand, since an extra installs it
    "tuner/settings.py": {"pydantic", "pydantic_settings"},
    "tuner/python/baselines.py": {"cloudpickle"},
    "tuner/server/app.py": {"fastapi", "starlette", "uvicorn"},
    "tuner/cli.py": {"click"},
    "tuner/commands/options.py": {"click", "pydantic"},
    "tuner/commands/cluster.py": {"click"},
    "tuner/commands/db.py": {"click"},
    "tuner/commands/doctor.py": {"click"},
    "tuner/estimate.py": {"pydantic"},
    "tuner/commands/fit.py": {"click"},
    "tuner/commands/schedules.py": {"click"},
    "tuner/commands/token.py": {"click"},
    "tuner/demo.py": {"click", "rich"},
    "workers": {"numpy", "pebble"},
    "workers/builder/nvrtc.py": {"cuda", "pebble"},  # NVRTC needs no GPU
    "workers/host/cards.py": {"pynvml"},  # NVML makes no CUDA context
    "workers/host/card_readings.py": {"pynvml"},
    "workers/gpu": {"numpy", "cupy", "cupyx", "cuda", "pynvml", "pebble", "torch"},
    "migrations": {"alembic", "sqlalchemy"},
}
OURS = {"tuner"}


def imported_roots(source: str) -> set[str]:
    """Top-level names of all absolute imports, anywhere in the file."""
    roots: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            roots.add(node.module.split(".")[0])
    return roots


def allowed(path: str) -> set[str]:
    prefixes = [p for p in LIBRARIES if path == p or path.startswith(p + "/")]
    return LIBRARIES[max(prefixes, key=len)] if prefixes else set()


#: Imports in a file, and texts that look like one.
LIKE_IMPORTS = re.compile(r"(?:^|;)\s*(?:from|import)\s+(\w[^;#\n]*)", re.MULTILINE)


def like_imported_roots(source: str) -> set[str]:
    """Top-level names of all absolute imports, and other first words behind `from` and `import`."""
    found = (name for names in LIKE_IMPORTS.findall(source) for name in names.split(" import ")[0].split(","))
    return {re.split(r"\W", name.strip(" ()"))[0] for name in found}


def test_each_package_imports_only_its_own_libraries(repository_files: list[Path], root: Path) -> None:
    strays = {}
    for path in repository_files:
        name = path.relative_to(root).as_posix()
        if path.suffix == ".py" and name.split("/")[0] in {"tuner", "workers", "migrations"}:
            known, text = set(sys.stdlib_module_names) | OURS | allowed(name), path.read_text()
            # Only where a line looks like a wrong import, the file is parsed.
            if not like_imported_roots(text) <= known and (stray := imported_roots(text) - known):
                strays[name] = sorted(stray)
    assert strays == {}


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "import os, torch.nn as nn",
        "x = 1; import torch",
        "if x:\n    from torch.nn import (\n  one,\n)",
    ],
)
def test_each_way_to_import_is_seen(source: str) -> None:
    assert "torch" in like_imported_roots(source) & imported_roots(source)


def absolute_names(source: str) -> set[str]:
    """Modules named by absolute imports, anywhere in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.slow
def test_workers_import_each_other_relatively_and_nobody_by_the_folders_bare_name(
    repository_files: list[Path], root: Path
) -> None:
    found = set()
    for path in repository_files:
        name = path.relative_to(root).as_posix()
        if path.suffix == ".py":
            wrong = r"(tuner\.)?workers\b" if name.startswith("workers/") else r"workers\b"
            names = absolute_names(text) if re.search(r"\bworkers\b", text := path.read_text()) else ()
            found |= {f"{name}: {one}" for one in names if re.match(wrong, one)}
    assert found == set()


BLOCKED_IN_BASE = [
    "alembic", "cuda", "cupy", "fastapi", "jinja2", "numpy", "optuna", "pebble", "pydantic", "pydantic_settings",
    "pynvml", "sqlalchemy", "sse_starlette", "starlette", "uvicorn", "tuner.workers",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("module", ["tuner.client", "tuner.client.cli", "tuner.cli", "tuner.python"])
def test_the_base_install_imports_without_the_servers_libraries(module: str) -> None:
    program = f"import sys; sys.modules.update(dict.fromkeys({BLOCKED_IN_BASE!r})); import {module}"
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_workers_import_without_a_gpu_or_a_driver() -> None:
    program = (
        "import sys, importlib, pkgutil; from tuner import workers\n"
        "sys.modules.update(dict.fromkeys(['cupy', 'cuda', 'pynvml']))\n"
        "names = [info.name for info in pkgutil.walk_packages(workers.__path__, 'tuner.workers.')]\n"
        "names = [name for name in names if not name.startswith('tuner.workers.gpu.') or name.endswith('.child')]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names))"
    )
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 30
