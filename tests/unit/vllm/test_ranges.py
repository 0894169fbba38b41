"""Graphs with vLLM's own code in place of the plugin's operators, and the ranges of rows for which vLLM compiles
them."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compiler
WIDE, INNER, EPS = 32, 48, 1e-5
ENDS = [64, 8192]
Rows = tuple[int, int]


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    found = importlib.import_module("tuner.vllm.ranges")
    operator = importlib.import_module("tuner.vllm.operator")
    for name, held in {"by_kernel": set(), "_gated": {}}.items():
        monkeypatch.setattr(operator, name, held)
    monkeypatch.setattr(found, "by_kernel", operator.by_kernel)
    caplog.set_level(logging.INFO)
    return found


class Block(torch.nn.Module):  # type: ignore[misc]
    """An MLP between two norms, as PyTorch traces those of the plugin; without norms, the MLP alone."""

    def __init__(self, activation: str = "silu", *, has_norms: bool = False, is_wide: bool = True) -> None:
        super().__init__()
        shapes = {"w1": (2 * INNER, WIDE), "w2": (WIDE, INNER), "first": (WIDE,), "second": (WIDE,)}
        for name, shape in shapes.items():
            setattr(self, name, torch.nn.Parameter(torch.randn(shape).bfloat16(), requires_grad=False))
        self.activation, self.has_norms, self.is_wide = activation, has_norms, is_wide

    def mlp(self, rows: Any) -> Any:
        flat = rows.reshape(-1, WIDE)
        return torch.ops.tuner_vllm.mlp(flat, self.w1, self.w2, self.activation).view(rows.shape)

    def forward(self, rows: Any, residual: Any) -> Any:
        if not self.has_norms:
            return (self.mlp(rows),)
        rows, residual = self.norm(rows, residual, self.first, self.is_wide)
        return self.norm(self.mlp(rows), residual, self.second, False)

    def norm(self, rows: Any, residual: Any, weight: Any, is_wide: bool) -> Any:
        flat = rows.reshape(-1, WIDE), residual.reshape(-1, WIDE)
        normed, added = torch.ops.tuner_vllm.add_norm(*flat, weight, EPS, is_wide)
        return normed.view(rows.shape), added.view(rows.shape)

    def by_vllm(self, rows: Any, residual: Any = None) -> Any:
        """What vLLM's modules compute."""
        from torch.nn.functional import gelu, linear, silu

        if self.has_norms:
            rows, residual = self._vllms_norm(rows, residual, self.first)
        pairs = linear(rows, self.w1)
        gate = silu(pairs[..., :INNER]) if self.activation == "silu" else gelu(pairs[..., :INNER], approximate="tanh")
        rows = linear(gate * pairs[..., INNER:], self.w2)
        return self._vllms_norm(rows, residual, self.second) if self.has_norms else (rows,)

    @staticmethod
    def _vllms_norm(rows: Any, residual: Any, weight: Any) -> Any:
        from vllm import ir

        return ir.ops.fused_add_rms_norm(rows, residual, weight, EPS)


class WideBlock(Block):
    """Returns the sum that it keeps in fp32, as if another graph had the next norm."""

    def forward(self, rows: Any, residual: Any) -> Any:
        return self.norm(rows, residual, self.first, True)


def traced(block: Any, rows: int = 5, residual_dtype: Any = None) -> tuple[Any, list[Any]]:
    """The block's graph as PyTorch traces it, and its inputs."""
    made = list[tuple[Any, list[Any]]]()

    def backend(graph: Any, inputs: list[Any]) -> Any:
        made.append((graph, inputs))
        return graph.forward

    if block.has_norms:
        pytest.importorskip("vllm.ir")
        importlib.import_module("tuner.vllm.norms.replaced")
    given = torch.randn(rows, WIDE).bfloat16(), torch.randn(rows, WIDE).to(residual_dtype or torch.bfloat16)
    torch._dynamo.reset()
    with torch.inference_mode():
        torch.compile(block, backend=backend, fullgraph=True)(*given)
    ((graph, inputs),) = made
    return graph, inputs


def ops(graph: Any) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def ours(graph: Any) -> int:
    return sum("tuner_vllm" in one for one in ops(graph))


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("has_norms", [False, True])
def test_the_graph_computes_what_vllms_modules_do(ranges: Any, activation: str, has_norms: bool) -> None:
    block = Block(activation, has_norms=has_norms)
    graph, inputs = traced(block)
    before, text = ours(graph), graph.code
    made = ranges.own(graph)
    given = [one for one in inputs if torch.is_tensor(one) and one.shape == (5, WIDE)]
    with torch.inference_mode():
        wanted = block.by_vllm(*(one.clone() for one in given))
        found = made(*(one.clone() if torch.is_tensor(one) else one for one in inputs))
        for one, right in zip(found, wanted, strict=True):
            assert torch.equal(one, right)
    assert (before, ours(made)) == (3 if has_norms else 1, 0)
    assert (ours(graph), graph.code) == (before, text), "vLLM compiles it for other ranges"


def test_a_graph_without_operators_is_not_copied(ranges: Any) -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
    assert ranges.own(graph) is graph


def test_a_sum_in_fp32_that_enters_or_leaves_a_graph_keeps_the_operators(ranges: Any) -> None:
    leaves, _ = traced(WideBlock(has_norms=True))
    enters, _ = traced(Block(has_norms=True), residual_dtype=torch.float32)
    for graph in (leaves, enters):
        assert ranges.own(graph) is graph


def test_quantised_mlps_keep_their_operator(ranges: Any) -> None:
    quantised = importlib.import_module("tuner.vllm.quantised.mlps")

    class QuantisedBlock(Block):
        def mlp(self, rows: Any) -> Any:
            return torch.ops.tuner_vllm.quantised_mlp(rows, self.w1)

    block = QuantisedBlock(has_norms=True)
    quantised._bound[block.w1.data_ptr()] = (
        None,
        SimpleNamespace(kernels={range(1, 99): lambda given: given["x"]}, tensors={}),
    )
    graph, _ = traced(block)
    assert [one for one in ops(ranges.own(graph)) if "tuner_vllm" in one] == ["tuner_vllm.quantised_mlp"]


def test_mlps_whose_activation_vllm_has_a_kernel_for_stay_ours(ranges: Any) -> None:
    """`custom_ops` names it, so vLLM's own graph would call that kernel."""
    operator = importlib.import_module("tuner.vllm.operator")
    graph, _ = traced(Block())
    operator.use_activation("silu", NativeSilu())
    assert ours(ranges.own(graph)) == 0
    operator.use_activation("silu", torch.nn.functional.silu)
    assert ours(ranges.own(graph)) == 1


class NativeSilu:
    """An activation that vLLM compiles, in another form outside of its graphs."""

    def dispatch_forward(self, compile_native: bool) -> Any:
        return (torch.nn.functional.silu, torch.nn.functional.gelu)[compile_native]


class Vllm:
    """vLLM's compiler, which records the graphs that it compiles."""

    def __init__(self, refuses: Callable[[Any], bool]) -> None:
        compiled = self.compiled = list[tuple[Any, Rows]]()

        class CompilerManager:
            def compile(self, graph: Any, example_inputs: Any, *, compile_range: Any) -> Any:
                compiled.append((graph, (compile_range.start, compile_range.end)))
                if refuses(graph):
                    raise RuntimeError("no such pattern")
                return graph

        self.manager: Any = CompilerManager

    def compile(self, graph: Any, config: Any) -> list[Any]:
        """The graph for each range of the config."""
        starts = [1, *(end + 1 for end in config.compile_ranges_endpoints[:-1])]
        spans = zip(starts, config.compile_ranges_endpoints, strict=True)
        spans_of = [SimpleNamespace(start=start, end=end) for start, end in spans]
        return [self.manager().compile(graph, [], compile_range=one) for one in spans_of]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(refuses: Callable[[Any], bool] = lambda graph: False) -> Vllm:
        found = Vllm(refuses)
        module = ModuleType("vllm.compilation.backends")
        vars(module).update(CompilerManager=found.manager)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return found

    return made


@pytest.fixture
def pack_to(ranges: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def made(last: int) -> Path:
        """A pack with kernels up to this row, and the library after it; 0 for none."""
        rungs = (
            SimpleNamespace(m_hi=last, kernel="a kernel" if last else None),
            SimpleNamespace(m_hi=9999, kernel=None),
        )
        monkeypatch.setattr(ranges, "read_pack", lambda _: SimpleNamespace(entries=[SimpleNamespace(rungs=rungs)]))
        (path := tmp_path / "model.tunerpack").write_bytes(b"a pack")
        return path

    return made


def compilation(mode: int = 3, ends: Any = ENDS) -> Any:
    return SimpleNamespace(mode=mode, compile_ranges_endpoints=ends and [*ends])


def test_a_range_ends_at_the_last_row_and_those_after_it_are_vllms(
    ranges: Any, vllm: Any, pack_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config, compiler = compilation(), vllm()
    ranges.split(config, pack_to(128))
    assert config.compile_ranges_endpoints == [64, 128, 8192]
    graph, _ = traced(Block())
    assert [ours(one) for one in compiler.compile(graph, config)] == [1, 1, 0]
    assert caplog.messages == ["tuner: from 129 rows on, steps are vLLM's own code"]


def test_of_several_models_the_largest_last_row_counts(ranges: Any, vllm: Any, pack_to: Any) -> None:
    configs, compiler = [compilation(), compilation()], vllm()
    graph, _ = traced(Block())
    for config, last in zip(configs, (128, 32), strict=True):
        ranges.split(config, pack_to(last))
    assert [config.compile_ranges_endpoints for config in configs] == [[64, 128, 8192], [32, 64, 8192]]
    found = [[ours(one) for one in compiler.compile(graph, config)] for config in configs]
    assert found == [[1, 1, 0], [1, 1, 1]]
    assert len(compiler.compiled) == 6, "wrapped once"


def test_if_a_graph_does_not_compile_it_and_those_after_it_keep_the_operators(
    ranges: Any, vllm: Any, pack_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config, compiler = compilation(ends=[1024, 8192]), vllm(refuses=lambda graph: not ours(graph))
    ranges.split(config, pack_to(128))
    graph, _ = traced(Block())
    assert [one is graph for one in compiler.compile(graph, config)] == [True] * 3
    assert [(ours(one), span) for one, span in compiler.compiled] == [
        (1, (1, 128)),
        (0, (129, 1024)),
        (1, (129, 1024)),
        (1, (1025, 8192)),
    ]
    assert [line for line in caplog.messages if "compile" in line] == [
        "tuner: other steps call the operators, since vLLM's own code does not compile: no such pattern"
    ]
    ranges.split(later := compilation(), pack_to(128))
    assert later.compile_ranges_endpoints == ENDS


def test_if_a_graph_cannot_be_made_it_keeps_the_operators(
    ranges: Any, vllm: Any, pack_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config, compiler = compilation(), vllm()
    ranges.split(config, pack_to(128))
    graph, _ = traced(Block())
    for node in graph.graph.nodes:
        node.meta.clear()
    assert [one is graph for one in compiler.compile(graph, config)] == [True] * 3
    assert "tuner: other steps call the operators" in caplog.text


@pytest.mark.parametrize(
    ("last", "mode", "ends"),
    [(0, 3, ENDS), (8192, 3, ENDS), (9000, 3, ENDS), (128, 0, ENDS), (128, 3, None), (128, 3, [])],
)
def test_without_kernels_or_rows_after_them_or_compiled_ranges_nothing_changes(
    ranges: Any, vllm: Any, pack_to: Any, caplog: pytest.LogCaptureFixture, last: int, mode: int, ends: Any
) -> None:
    config, compiler = compilation(mode, ends), vllm()
    own = compiler.manager.compile
    ranges.split(config, pack_to(last))
    assert config.compile_ranges_endpoints == ends
    assert compiler.manager.compile is own
    assert not caplog.messages


def test_a_range_of_a_single_row_would_be_a_fixed_size(ranges: Any, vllm: Any, pack_to: Any) -> None:
    vllm()
    ranges.split(config := compilation(), pack_to(1))
    assert config.compile_ranges_endpoints == [2, 64, 8192]


def test_a_damaged_pack_has_no_last_row(ranges: Any, tmp_path: Path) -> None:
    (path := tmp_path / "cut.tunerpack").write_bytes(b"half of a pack")
    assert ranges.last_row(path) == 0


class OtherManager:
    def compile(self, graph: Any) -> Any:
        return graph


@pytest.mark.parametrize("module", [None, SimpleNamespace(), SimpleNamespace(CompilerManager=OtherManager)])
def test_another_vllm_is_said_and_breaks_nothing(
    ranges: Any, monkeypatch: pytest.MonkeyPatch, pack_to: Any, caplog: pytest.LogCaptureFixture, module: Any
) -> None:
    monkeypatch.setitem(sys.modules, "vllm.compilation.backends", module)
    ranges.split(config := compilation(), pack_to(128))
    assert config.compile_ranges_endpoints == ENDS
    (line,) = caplog.messages
    assert line.startswith("tuner: steps of all sizes call the operators, since this vLLM compiles ranges differently")


def test_so_is_a_config_without_ranges(ranges: Any, vllm: Any, pack_to: Any, caplog: pytest.LogCaptureFixture) -> None:
    vllm()
    ranges.split(SimpleNamespace(mode=3), pack_to(128))
    assert "this vLLM compiles ranges differently" in caplog.text
