"""The operators of ops/ on a GPU, against eager torch and torch.compile.

    python benchmarks/ops.py --json results.json      # needs a GPU
    python benchmarks/ops.py --plot results.json      # needs only matplotlib

Tensors are 4096 x 4096, unless Inputs says otherwise. Times are GPU times, the medians of rounds
in which the variants take turns. Before each call the L2 cache is filled with other memory, and
the GPU is kept busy until the host has launched. A ratio is an operator's time over that of eager
or compiled torch, whichever is shorter.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
PLOTS = Path(__file__).parent / "plots"
SIZE, ROUNDS, WARM = 4096, 100, 5
ENTRIES, CLASSES, TOKENS = 128 << 10, 32 << 10, 16 << 10
LIMIT = 1.05
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
VARIANTS = ("op", "torch", "compiled")
# Rows that measure an operator once more.
OPERATORS = {"gemm_16": "gemm", "gemm_512": "gemm", "gemm_fp8": "gemm"}
# Bound by arithmetic, so the limit does not apply: theirs, if they have one.
ARITHMETIC = ("gemm", "attention")
LIMITS = {
    ("gemm", "bf16"): 1.05,
    ("gemm_512", "bf16"): 1.1,
    ("gemm_16", "bf16"): 1.1,
    ("attention", "bf16"): 1.15,
}
# Measured in half precision only, for which they are made.
HALVES = {"gemm_16", "gemm_512", "gemm_fp8", "paged_attention", "attention", "attention_backward",
          "attention_varlen", "attention_varlen_backward"}  # fmt: skip


class Inputs:
    """Random tensors, and the arguments of each operator."""

    def __init__(self, dtype: str) -> None:
        import torch  # noqa: PLC0415  # drawing needs none

        self._torch = torch
        self._like = {"device": "cuda", "dtype": getattr(torch, DTYPES[dtype])}

    def random(self, *shape: int) -> Tensor:
        return self._torch.randn(shape, **self._like)

    def add(self) -> tuple[Any, ...]:
        return self.random(SIZE, SIZE), self.random(SIZE, SIZE)

    mul = silu_backward = gemm = add

    def silu(self) -> tuple[Any, ...]:
        return (self.random(SIZE, SIZE),)

    softmax = silu

    def silu_and_mul(self) -> tuple[Any, ...]:
        return (self.random(SIZE, 2 * SIZE),)

    def silu_and_mul_backward(self) -> tuple[Any, ...]:
        return self.random(SIZE, SIZE), self.random(SIZE, 2 * SIZE)

    gelu_and_mul, gelu_and_mul_backward = silu_and_mul, silu_and_mul_backward

    def softmax_backward(self) -> tuple[Any, ...]:
        return self.random(SIZE, SIZE), self.random(SIZE, SIZE).softmax(-1)

    def rms_norm(self) -> tuple[Any, ...]:
        return self.random(SIZE, SIZE), self.random(SIZE), 1e-6

    def rms_norm_backward(self) -> tuple[Any, ...]:
        return self.random(SIZE, SIZE), *self.rms_norm()

    def layer_norm(self) -> tuple[Any, ...]:
        return self.random(SIZE, SIZE), self.random(SIZE), self.random(SIZE), 1e-5

    def layer_norm_backward(self) -> tuple[Any, ...]:
        return self.random(SIZE, SIZE), *self.rms_norm()

    def rotary(self) -> tuple[Any, ...]:
        """Queries of 32 heads of 128 elements, and keys of 8."""
        angles = self._torch.randn(SIZE, 64, device="cuda")
        q, k = self.random(SIZE, 32, 128), self.random(SIZE, 8, 128)
        return q, k, angles.cos(), angles.sin()

    def embedding(self) -> tuple[Any, ...]:
        """A vocabulary of 128k, and 16k tokens."""
        tokens = self._torch.randint(ENTRIES, (TOKENS,), device="cuda")
        return self.random(ENTRIES, SIZE), tokens

    def embedding_backward(self) -> tuple[Any, ...]:
        tokens = self._torch.randint(ENTRIES, (TOKENS,), device="cuda")
        return self.random(TOKENS, SIZE), tokens, ENTRIES

    def cross_entropy(self) -> tuple[Any, ...]:
        """Logits of 32k classes."""
        target = self._torch.randint(CLASSES, (SIZE,), device="cuda")
        return self.random(SIZE, CLASSES), target

    cross_entropy_in_place = cross_entropy

    def cross_entropy_backward(self) -> tuple[Any, ...]:
        return self._torch.randn(SIZE, device="cuda"), *self.cross_entropy()

    quantize_rows = quantize_blocks = silu

    def topk_gating(self) -> tuple[Any, ...]:
        """8 of 256 experts."""
        return self.random(TOKENS, 256), 8

    def gemm_16(self) -> tuple[Any, ...]:
        return self.random(16, SIZE), self.random(SIZE, SIZE)

    def gemm_512(self) -> tuple[Any, ...]:
        return self.random(512, SIZE), self.random(SIZE, SIZE)

    def gemm_fp8(self) -> tuple[Any, ...]:
        a, b = (x.to(self._torch.float8_e4m3fn) for x in self.add())
        return a, b, None, 1.0, 1.0, False, True

    def attention(self) -> tuple[Any, ...]:
        """16 heads of 128 elements, 8k tokens, causal."""
        return *(self.random(1, 16, 2 * SIZE, 128) for _ in range(3)), True, 128**-0.5

    def attention_backward(self) -> tuple[Any, ...]:
        q, k, v, *rest = self.attention()
        made = every_operator()["attention"](q, k, v, *rest)
        return self.random(*q.shape), q, k, v, *made, *rest

    def attention_varlen(self) -> tuple[Any, ...]:
        """The same heads, in 4 sequences of equal length."""
        starts = self._torch.arange(5, device="cuda", dtype=self._torch.int32) * (SIZE // 2)
        given = (self.random(2 * SIZE, 16, 128) for _ in range(3))
        return *given, starts, starts, SIZE // 2, SIZE // 2, True, 128**-0.5

    def attention_varlen_backward(self) -> tuple[Any, ...]:
        q, k, v, *rest = self.attention_varlen()
        made = every_operator()["attention_varlen"](q, k, v, *rest)
        return self.random(*q.shape), q, k, v, *made, *rest

    def paged_attention(self) -> tuple[Any, ...]:
        """64 sequences of 4k tokens, 32 heads of 128 that share 8, pages of 16."""
        torch = self._torch
        table = torch.randperm(64 * 256, device="cuda").int().view(64, 256)
        lengths = torch.full((64,), SIZE, device="cuda", dtype=torch.int32)
        pages = (self.random(64 * 256, 16, 8, 128) for _ in range(2))
        return self.random(64, 32, 128), *pages, table, lengths, 128**-0.5


@functools.cache
def every_operator() -> dict[str, Any]:
    """Every operator in the tree, by name."""
    sys.path[:0] = [str(ROOT / "src")]
    import opforge  # noqa: PLC0415  # drawing needs none
    from opforge.native.targets import operators  # noqa: PLC0415

    return {opforge.info(op).name.partition("::")[2]: op for op in operators([f"{ROOT}/ops/"])}


def reference(name: str) -> Callable[..., Any]:
    # This file is also called ops, so the tree is imported under another name.
    files = set(map(str, ROOT.glob("ops/*/op.py")))
    modules = (m for m in sys.modules.values() if getattr(m, "__file__", None) in files)
    found: Callable[..., Any] = next(
        getattr(m, f"{name}_reference") for m in modules if hasattr(m, f"{name}_reference")
    )
    return found


def torchs_own(name: str, given: tuple[Any, ...]) -> Callable[[], Any]:
    """The same in eager torch; for a backward, what autograd does, whose kernels are fused too."""
    import torch  # noqa: PLC0415

    if name == "softmax_backward":
        grad, y = given
        fused = torch.ops.aten._softmax_backward_data  # noqa: SLF001  # it has no public name
        return lambda: fused(grad, y, -1, y.dtype)
    if name == "embedding_backward":
        # Looked up once: it takes longer than the GPU waits.
        found = reference(name)
        return lambda: found(*given)
    if name == "topk_gating":
        return lambda: gating(*given)
    if name in {"gemm", "gemm_16", "gemm_512"}:
        # Without the reference's factors, which are kernels of their own.
        a, b = given
        return lambda: a @ b
    if name == "gemm_fp8":
        a, b, *_ = given
        one = torch.ones((), device="cuda")
        product = torch._scaled_mm  # noqa: SLF001  # it has no public name
        return lambda: product(a, b.mT, one, one, out_dtype=torch.bfloat16)
    if name.startswith("attention"):
        return fastest(sdpa(name, given))
    if name.startswith("cross_entropy"):
        return entropy(name, *given)
    if name == "layer_norm_backward":
        given = (*given[:3], torch.zeros_like(given[2]), given[3])
    if not name.endswith("_backward"):
        # Looked up once: it takes longer than the GPU waits.
        found = reference(OPERATORS.get(name, name))
        return lambda: found(*given)
    grad, *inputs = given
    tensors = [t.requires_grad_() for t in inputs if hasattr(t, "dtype") and t.is_floating_point()]
    out = reference(name.removesuffix("_backward"))(*inputs)
    return lambda: torch.autograd.grad(out, tensors, grad, retain_graph=True)


def sdpa(name: str, given: tuple[Any, ...]) -> Callable[[], Any]:
    """torch's attention; of packed sequences of one length, as a batch."""
    import torch  # noqa: PLC0415

    is_backward = name.endswith("_backward")
    grad, (q, k, v) = (given[0], given[1:4]) if is_backward else (None, given[:3])
    if "varlen" in name:
        whole = [x for x in (grad, q, k, v) if x is not None]
        *grads, q, k, v = (x.unflatten(0, (4, -1)).transpose(1, 2).contiguous() for x in whole)
        grad = grads[0] if grads else None
    q, k, v = (x.detach().requires_grad_(is_backward) for x in (q, k, v))

    def forward() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    if not is_backward:
        return forward
    kept: dict[Any, Any] = {}

    def backward() -> Any:
        # The forward of each backend runs once.
        chosen = torch.backends.cuda.cudnn_sdp_enabled()
        out = kept[chosen] if chosen in kept else kept.setdefault(chosen, forward())
        return torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    return backward


def fastest(call: Callable[[], Any]) -> Callable[[], Any]:
    """With the backend of attention that takes the least time."""
    from torch.nn import attention  # noqa: PLC0415

    def chosen(backend: Any) -> Any:
        with attention.sdpa_kernel(backend):
            return call()

    backend = attention.SDPBackend
    every = (backend.CUDNN_ATTENTION, backend.FLASH_ATTENTION)
    calls = {one: functools.partial(chosen, one) for one in every}
    taken = gpu_microseconds(calls, rounds=5)
    return calls[min(taken, key=lambda one: taken[one])]


def entropy(name: str, *given: Any) -> Callable[[], Any]:
    """torch's cross entropy, which takes half precision as it is."""
    import torch  # noqa: PLC0415

    loss, grad = torch.nn.functional.cross_entropy, torch.autograd.grad
    *grads, logits, target = given
    if name == "cross_entropy":
        return lambda: loss(logits, target, reduction="none")
    twin = logits.detach().requires_grad_()
    if name == "cross_entropy_in_place":
        return lambda: grad(loss(twin, target), twin)
    out = loss(twin, target, reduction="none")
    return lambda: grad(out, twin, grads[0].to(out.dtype), retain_graph=True)


def gating(logits: Any, k: int) -> Any:
    """With topk, which leaves open which of equal logits comes first."""
    weights, indices = logits.float().softmax(-1).topk(k)
    return weights / weights.sum(-1, keepdim=True), indices.int()


def detached(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(v.detach() if hasattr(v, "detach") else v for v in values)


def measure(name: str, op: Any, dtype: str) -> dict[str, Any]:
    import torch  # noqa: PLC0415

    given = getattr(Inputs(dtype), name)()
    plain = detached(given)
    torch.compiler.reset()
    calls = {"op": lambda: op(*plain), "torch": torchs_own(name, given)}
    if name.startswith("attention"):
        # A compiled reference has all scores in memory.
        calls["compiled"] = calls["torch"]
    else:
        compiled = torch.compile(reference(OPERATORS.get(name, name)), dynamic=False)
        calls["compiled"] = lambda: compiled(*plain)
    microseconds = gpu_microseconds(calls)
    # Bytes read and written; an in-place operator writes what it reads.
    made = op(*plain)
    made = plain[:2] if made is None else made if isinstance(made, tuple) else (made,)
    # Of a table, as much is read as written; cross_entropy_in_place writes logits, too.
    plain = made if name == "embedding" else plain
    made = (*made, plain[0]) if name == "cross_entropy_in_place" else made
    bytes_ = sum(t.nbytes for t in (*plain, *made) if isinstance(t, torch.Tensor))
    best = min(microseconds["torch"], microseconds["compiled"])
    return {
        "op": name,
        "dtype": dtype,
        "shapes": [list(t.shape) for t in plain if isinstance(t, torch.Tensor)],
        "microseconds": microseconds,
        "ratio": microseconds["op"] / best,
        "gigabytes_per_second": bytes_ / microseconds["op"] / 1e3,
        "limit": LIMITS.get((name, dtype), None if name.startswith(ARITHMETIC) else LIMIT),
    }


def gpu_microseconds(
    calls: Mapping[Any, Callable[[], Any]], rounds: int = ROUNDS
) -> dict[Any, float]:
    """The median of each call, over rounds in which they take turns."""
    import torch  # noqa: PLC0415

    # Four times the L2 cache of an H200. It is read: writes would be written back during the call.
    other = torch.zeros(50 << 20, dtype=torch.float32, device="cuda")
    taken: dict[Any, list[tuple[Any, Any]]] = {name: [] for name in calls}
    for round_ in range(rounds + WARM):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            other.sum()
            # About 1 ms, in which the host gets ahead of the GPU.
            torch.cuda._sleep(2_000_000)  # noqa: SLF001  # there is no public way to wait
            start.record()
            call()
            end.record()
            if round_ >= WARM:
                taken[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: statistics.median(start.elapsed_time(end) * 1e3 for start, end in events)
        for name, events in taken.items()
    }


def run(names: list[str], dtypes: list[str]) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    import triton  # noqa: PLC0415

    # fp32 products in fp32, as in the operator.
    torch.backends.cuda.matmul.allow_tf32 = False
    operators = every_operator()
    operators = {**operators, **{row: operators[name] for row, name in OPERATORS.items()}}
    missing = [name for name in operators if not hasattr(Inputs, name)]
    if missing:
        raise SystemExit(f"no inputs for {', '.join(missing)}: add them to Inputs in {__file__}")
    unknown = [name for name in names if name not in operators]
    if unknown:
        raise SystemExit(f"no operator {', '.join(unknown)}; there are {', '.join(operators)}")
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "rows": [
            measure(name, operators[name], dtype)
            for dtype in dtypes
            for name in sorted(names or operators)
            if dtype != "fp32" or name not in HALVES
        ],
    }


def table(results: dict[str, Any]) -> Table:
    title = f"{results['device']}, torch {results['torch']}, Triton {results['triton']}"
    made = Table("op", "dtype", "op us", "torch us", "compiled us", "ratio", "GB/s", title=title)
    for row in results["rows"]:
        ratio, limit = row["ratio"], row["limit"]
        style = "default" if limit is None else "green" if ratio <= limit else "red"
        times = [f"{row['microseconds'][variant]:.1f}" for variant in VARIANTS]
        made.add_row(
            row["op"], row["dtype"], *times, f"[{style}]{ratio:.3f}[/]",
            f"{row['gigabytes_per_second']:.0f}",
        )  # fmt: skip
    return made


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """A plot per dtype: each variant's time over torch's best."""
    import matplotlib as mpl  # noqa: PLC0415  # measuring needs none

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    colours = {"op": "#2a6fbb", "torch": "#c9c9c9", "compiled": "#8f8f8f"}
    labels = {"op": "opforge", "torch": "torch", "compiled": "torch.compile"}
    written = []
    for dtype in dict.fromkeys(row["dtype"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["dtype"] == dtype]
        figure, axes = plt.subplots(figsize=(max(6.0, 0.9 * len(rows) + 2), 4.2))
        for index, variant in enumerate(VARIANTS):
            at = [place + (index - 1) * 0.27 for place in range(len(rows))]
            heights = [_relative(row, variant) for row in rows]
            axes.bar(at, heights, 0.25, color=colours[variant], label=labels[variant])
            if variant == "op":
                for x, height, row in zip(at, heights, rows, strict=True):
                    text = f"{height:.2f}\n{row['gigabytes_per_second']:.0f} GB/s"
                    axes.text(x, height + 0.02, text, ha="center", va="bottom", fontsize=6)
        axes.axhline(LIMIT, color="#c0392b", linewidth=0.8, linestyle="--", label=f"{LIMIT}")
        axes.set_xticks(range(len(rows)), [row["op"] for row in rows], rotation=35, ha="right")
        # Where torch needs several kernels it is far off; the scale is set by the others.
        axes.set_ylim(0, 2.5)
        axes.set_ylabel("GPU time / best of torch")
        axes.set_title(f"{SIZE} x {SIZE} {dtype}, {results['device']}", fontsize=10)
        axes.legend(fontsize=7, ncols=4, loc="upper right")
        figure.tight_layout()
        written.append(folder / f"ops_{dtype}.png")
        figure.savefig(written[-1], dpi=150)
        plt.close(figure)
    return written


def _relative(row: dict[str, Any], variant: str) -> float:
    times = row["microseconds"]
    found: float = times[variant] / min(times["torch"], times["compiled"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="operators to measure; default: all of ops/")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bf16", "fp32"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot results from this file")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", default=PLOTS)
    asked = parser.parse_args()
    if asked.plot:
        for file in draw(json.loads(asked.plot.read_text()), asked.plots):
            print(file)
        return
    import torch  # noqa: PLC0415  # drawing needs none

    if not torch.cuda.is_available():
        parser.error("needs a GPU; --plot only draws earlier results")
    results = run(asked.names, asked.dtypes)
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=2) + "\n")
    Console(width=None if sys.stdout.isatty() else 110).print(table(results))
    if any(row["limit"] and row["ratio"] > row["limit"] for row in results["rows"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
