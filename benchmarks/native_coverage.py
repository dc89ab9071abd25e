"""How many forward functions of public Triton libraries build natively, unmodified.

    PYTHONPATH=/path/to/libraries python benchmarks/native_coverage.py [word ...]

Each is called as its library calls it, with nothing but a declaration added; nothing is compiled.
The last ones also compute with torch, which the library does with kernels of opforge's own.
"""

import importlib
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

import opforge
from opforge import native
from opforge._compat import driver
from opforge.arch_names import parse_archs
from opforge.gpu_target import DEFAULT
from opforge.native.frontend.declaration import TensorSpec
from opforge.native.frontend.expand import expand
from opforge.native.tracing.case_builder import build_case
from opforge.registry import registry


@dataclass
class Forward:
    """A forward function; `call` is a Python expression of the parameters and the module `f`."""

    module: str
    call: str
    specs: dict[str, Any]
    returns: str = "Tensor"
    mutates: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.module.split('.')[0]}_{self.call.split('(')[0].rsplit('.', 1)[-1]}"


def tensors(dtype: str = "fp16", **dims: str) -> dict[str, Any]:
    return {name: native.tensor(shape, dtype=dtype) for name, shape in dims.items()}


def i32(**dims: str) -> dict[str, Any]:
    return tensors("i32", **dims)


PAIR = "tuple[Tensor, Tensor]"
TRIPLE = "tuple[Tensor, Tensor, Tensor]"
WIDE = {"dims": {"h": (1, 8192)}}
HEADS = {"dims": {"d": [64, 128]}}
FEW = {"dims": {"h": [1024, 4096]}}
SMALL = {"dims": {"r": [64, 4096], "h": [1024, 4096]}}
ROWS = tensors(x="r h")
LIGER, GEMS, FLA = "liger_kernel.ops.", "flag_gems.ops.", "fla."
CONCH, AO = "conch.ops.", "torchao.kernel."
LIGHT = "lightllm.models.llama.triton_kernel."
BASE = "lightllm.common.basemodel.triton_kernel."

TABLE = [
    Forward(LIGER + "rms_norm", "f.rms_norm_forward(x, w, 1e-6, 0.0, 'llama', None)[0:3:2]",
            {**tensors(x="r h", w="h"), **WIDE}, PAIR),
    Forward(LIGER + "swiglu", "f.swiglu_forward(a, b)[2]", {**tensors(a="r h", b="r h"), **FEW}),
    Forward(LIGER + "geglu", "f.geglu_forward(a, b)[2]", {**tensors(a="r h", b="r h"), **FEW}),
    Forward(LIGER + "layer_norm", "f.layer_norm_forward(x, w, b, 1e-5)[0]",
            {**tensors(x="r h", w="h", b="h"), **WIDE}),
    Forward(LIGER + "softmax", "f._softmax_forward(x)[0]", {**ROWS, **WIDE}),
    Forward(LIGER + "kl_div", "f.kldiv_forward_triton(x, t, False, 'none', 1e-10)",
            {**tensors(x="r h", t="r h"), **WIDE}),
    Forward(LIGER + "tvd", "f.tv_distance_forward_triton(x, t, None, 'none', -100, False)",
            {**tensors(x="r h", t="r h"), **WIDE}, PAIR),
    Forward(LIGER + "dyt", "f.liger_dyt_fwd(x, a, g, b)",
            {**tensors(x="r h", a="1", g="h", b="h"), **FEW}),
    Forward(LIGER + "group_norm", "f.group_norm_forward(x, 64, 8, w, b, 1e-5)[0]",
            {**tensors(x="n c h", w="c", b="c"), "dims": {"c": [64, 128], "h": (1, 4096)}}),
    Forward(LIGER + "fused_add_rms_norm",
            "f.fused_add_rms_norm_forward(x, r, w, 1e-6, 0.0, 'llama')[0:2]",
            {**tensors(x="n h", r="n h", w="h"), **WIDE}, PAIR),
    Forward(LIGER + "relu_squared", "f.relu_squared_forward(x)", {**ROWS, **FEW}),
    Forward(LIGER + "poly_norm", "f.poly_norm_forward(x, w, b, 1e-6)[0]",
            {**tensors(x="r h", w="3", b="1"), **WIDE}),
    Forward(GEMS + "silu", "f.silu(x)", ROWS),
    Forward(GEMS + "abs", "f.abs(x)", ROWS),
    Forward(GEMS + "relu", "f.relu(x)", ROWS),
    Forward(GEMS + "gelu", "f.gelu(x)", ROWS),
    Forward(GEMS + "add", "f.add(x, y)", tensors(x="r h", y="r h")),
    Forward(GEMS + "mul", "f.mul(x, y)", tensors(x="r h", y="h")),
    Forward(GEMS + "rms_norm", "f.rms_norm_forward(x, [4096], w)[0]",
            {**tensors(x="r 4096", w="4096")}),
    Forward(GEMS + "layernorm", "f.layer_norm(x, [4096], w, b)", {**tensors(x="r 4096", w="4096",
            b="4096")}, TRIPLE),
    Forward(GEMS + "softmax", "f.softmax(x, -1)", {**ROWS, **WIDE}),
    Forward(GEMS + "log_softmax", "f.log_softmax(x, -1)", {**ROWS, **WIDE}),
    Forward(GEMS + "mm", "f.mm(a, b)", tensors(a="m k", b="k n")),
    Forward(GEMS + "bmm", "f.bmm(a, b)", tensors(a="z m k", b="z k n")),
    Forward(GEMS + "addmm", "f.addmm(c, a, b)", tensors(a="m k", b="k n", c="m n")),
    Forward(GEMS + "sum", "f.sum(x)", {**ROWS, "dims": {"r": (1, 65536), "h": (1, 8192)}}),
    Forward(GEMS + "sum", "f.sum_dim(x, [1])", ROWS),
    Forward(GEMS + "mean", "f.mean_dim(x, [1])", ROWS),
    Forward(GEMS + "argmax", "f.argmax(x, 1)", ROWS),
    Forward(GEMS + "amax", "f.amax(x, [1])", ROWS),
    Forward(GEMS + "cumsum", "f.cumsum(x, 1)", {**ROWS, **WIDE}),
    Forward(GEMS + "embedding", "f.embedding(w, i)",
            {**tensors(w="v h"), **tensors("i64", i="r"), **FEW}),
    Forward(GEMS + "groupnorm", "f.group_norm(x, w, b, 4, 64, 256, 8)",
            tensors(x="4 64 256", w="64", b="64"), TRIPLE),
    Forward(GEMS + "triu", "f.triu(x)", ROWS),
    Forward(GEMS + "where", "f.where_self(c, x, y)",
            {**tensors("bool", c="r h"), **tensors(x="r h", y="r h")}),
    Forward(FLA + "modules.norm.l2norm", "f.l2norm_fwd(x)", {**ROWS, **FEW}, PAIR),
    Forward(FLA + "modules.norm.layernorm", "f.layer_norm_fwd(x, w, b, 1e-5)[0]",
            {**tensors(x="r h", w="h", b="h"), **FEW}),
    Forward(FLA + "modules.norm.fused_norm_gate",
            "f.layer_norm_gated_fwd(x, g, w, b, eps=1e-5)[0]",
            {**tensors(x="r h", g="r h", w="h", b="h"), **FEW}),
    Forward(FLA + "modules.activations.ops", "f.sigmoid_fwd(x)", {**ROWS, **FEW}),
    Forward(FLA + "modules.activations.ops", "f.swish_fwd(x)", {**ROWS, **FEW}),
    Forward(FLA + "modules.activations.ops", "f.swiglu_fwd(x, y)",
            {**tensors(x="r h", y="r h"), **FEW}),
    Forward(FLA + "ops.utils.cumsum", "f.chunk_local_cumsum(g, 64)",
            {**tensors("fp32", g="b t h"), "dims": {"h": [8, 16], "b": [1, 4]}}),
    Forward(FLA + "ops.utils.softmax", "f.softmax_fwd(x)", {**ROWS, **FEW}),
    Forward(FLA + "modules.rotary.ops", "f.rotary_embedding_fwdbwd(x, cos, sin)",
            {**tensors(x="b t h d", cos="t e", sin="t e"),
             "dims": {"d": 128, "e": 64, "h": [8, 32], "b": [1, 4], "t": [1024, 4096]}}),
    Forward(LIGHT + "rmsnorm", "f.rmsnorm_forward(x, w, 1e-6)",
            {**tensors(x="r h", w="h"), **WIDE}),
    Forward(LIGHT + "rotary_emb", "f.rotary_emb_fwd(q, k, cos, sin)",
            {**tensors(q="t h d", k="t g d", cos="t e", sin="t e"), "dims": {"d": [64, 128]}},
            "None", ("q", "k")),
    Forward(LIGHT + "token_attention_nopad_att1",
            "f.token_att_fwd(q, k, att, table, idx, start, lens, longest)",
            {**tensors(q="b h d", k="t g d", att="h n"), **i32(table="r s", idx="b", start="b",
             lens="b"), "longest": native.scalar("i32"),
             "dims": {"d": [64, 128], "h": [32], "g": [8, 32]}}, "None", ("att",)),
    Forward(LIGHT + "token_attention_nopad_softmax",
            "f.token_softmax_fwd(logits, start, lens, prob, longest)",
            {**tensors(logits="h n", prob="h n"), **i32(start="b", lens="b"),
             "longest": native.scalar("i32"), "dims": {"longest": (1, 8192)}}, "None", ("prob",)),
    Forward(LIGHT + "token_attention_nopad_reduceV",
            "f.token_att_fwd2(prob, v, out, table, idx, start, lens)",
            {**tensors(prob="h n", v="t g d", out="b h d"), **i32(table="r s", idx="b", start="b",
             lens="b"), "dims": {"d": [64, 128], "h": [32], "g": [8, 32]}}, "None", ("out",)),
    Forward(LIGHT + "context_flashattention_nopad",
            "f.context_attention_fwd(q, k, v, o, idx, start, lens, cached, longest, table)",
            {**tensors(q="t h d", k="s g d", v="s g d", o="t h d"),
             **i32(table="r s", idx="b", start="b", lens="b", cached="b"),
             "longest": native.scalar("i32"),
             "dims": {"d": [64, 128], "h": [32], "g": [8, 32]}}, "None", ("o",)),
    Forward(LIGHT + "gqa_decode_flashattention_nopad",
            "f.gqa_decode_attention_fwd(q, k, v, o, table, idx, lens)",
            {**tensors(q="t h d", k="s g d", v="s g d", o="t h d"),
             **i32(table="r s", idx="b", lens="b"),
             "dims": {"d": [64, 128], "h": [32], "g": [8, 32]}}, "None", ("o",)),
    Forward(LIGHT + "flash_decoding_stage2", "f.flash_decode_stage2(mid, logs, lens, o, 256)",
            {**tensors("fp32", mid="b h n d", logs="b h n"), **tensors(o="b h d"),
             **i32(lens="b"), **HEADS}, "None", ("o",)),
    Forward(BASE + "destindex_copy_kv", "f.destindex_copy_kv(k, at, out)",
            {**tensors(k="t h d", out="s h d"), **i32(at="t"),
             "dims": {"h": (1, 128), "d": [64, 128]}}, "None", ("out",)),
    Forward(BASE + "apply_penalty",
            "f.apply_penalty(x, a, b, c, ids, counts, sums, longest)",
            {**tensors("fp32", x="b v", a="b", b="b", c="b"),
             **i32(ids="n", counts="n", sums="m"), "longest": native.scalar("i32"),
             "dims": {"longest": (1, 8192)}}, "None", ("x",)),
    Forward(BASE + "copy_kv_index_to_req", "f.copy_kv_index_to_req(table, idx, lens, mem)",
            i32(table="r s", idx="b", lens="b", mem="b"), "None", ("table",)),
    Forward(LIGER + "kl_div", "f.kldiv_forward_triton(x, t, False, 'batchmean', 1e-10)",
            {**tensors(x="r h", t="r h"), **WIDE}),
    Forward(LIGER + "kl_div", "f.kldiv_forward_triton(x, t, False, 'mean', 1e-10)",
            {**tensors(x="r h", t="r h"), **WIDE}),
    Forward(LIGER + "tvd", "f.tv_distance_forward_triton(x, t, None, 'batchmean', -100, False)",
            {**tensors(x="r h", t="r h"), **WIDE}, PAIR),
    Forward(LIGER + "jsd", "f.jsd_forward(x, t, None, 0.5, -100, False)",
            {**tensors(x="r h", t="r h"), **SMALL}, PAIR),
    Forward(LIGER + "rms_norm",
            "f.rms_norm_backward(g, x, w, s, 0.0, 'llama', 4096, 8, False, False)",
            {**tensors(g="r 4096", x="r 4096", w="4096"), **tensors("fp32", s="r")}, PAIR),
    Forward(LIGER + "layer_norm", "f.layer_norm_backward(g, x, w, b, m, s)",
            {**tensors(g="r h", x="r h", w="h", b="h"), **tensors("fp32", m="r", s="r"), **SMALL},
            TRIPLE),
    Forward(LIGER + "poly_norm", "f.poly_norm_backward(g, x, w, s, 4096, 8, False)",
            {**tensors(g="r 4096", x="r 4096", w="3"), **tensors("fp32", s="r 3"),
             "dims": {"r": [1024, 4096]}}, TRIPLE),
    Forward(GEMS + "var_mean", "f.var_mean(x, [1])", ROWS, PAIR),
    Forward(GEMS + "std", "f.std(x, [1])", ROWS),
    Forward(GEMS + "mse_loss", "f.mse_loss(x, y)",
            {**tensors(x="r h", y="r h"), "dims": {"r": (1, 65536), "h": (1, 8192)}}),
    Forward(GEMS + "cat", "f.cat([x, y], 1)", tensors(x="r h", y="r g")),
    Forward(GEMS + "stack", "f.stack([x, y], 1)", tensors(x="r h", y="r h")),
    Forward(GEMS + "gather", "f.gather(x, 1, i)",
            {**tensors(x="r h"), **tensors("i64", i="r g")}),
    Forward(GEMS + "index_select", "f.index_select(x, 1, i)",
            {**tensors(x="r h"), **tensors("i64", i="g")}),
    Forward(GEMS + "repeat", "f.repeat(x, [2, 3])", ROWS),
    Forward(GEMS + "flip", "f.flip(x, [0])", ROWS),
    Forward(FLA + "ops.utils.logsumexp", "f.logsumexp_fwd(x)", {**ROWS, **FEW}),
    Forward(FLA + "modules.norm.layernorm", "f.layer_norm_bwd(g, x, w, b, mean=m, rstd=s)[0]",
            {**tensors(g="r h", x="r h", w="h", b="h"), **tensors("fp32", m="r", s="r"), **SMALL}),
    Forward(CONCH + "activation.silu_and_mul", "f.silu_and_mul(x)",
            {**tensors(x="r h"), "dims": {"h": (2, 8192)}}),
    # Its kernel hands x to libdevice, which has no half precision; it takes even widths.
    Forward(CONCH + "activation.gelu_tanh_and_mul", "f.gelu_tanh_and_mul(x)",
            {**tensors("fp32", x="r h"), "dims": {"h": [254, 4096]}}),
    Forward(CONCH + "normalization.rms_norm", "f.rms_norm(x, w, 1e-6)",
            {**tensors(x="r h", w="h"), **WIDE}),
    Forward(CONCH + "quantization.int8", "f.scaled_int8_quant(x, s)[0]",
            {**tensors(x="r h"), **tensors("fp32", s="1"), **WIDE}),
    Forward(CONCH + "quantization.fp8", "f.scaled_fp8_quant(x, s)[0]",
            {**tensors(x="r h"), **tensors("fp32", s="1"), **WIDE}),
    Forward(AO + "blockwise_quantization", "f.fp8_blockwise_act_quant(x, 128)",
            {**tensors("bf16", x="r 4096")}, PAIR),
    Forward(AO + "blockwise_quantization", "f.fp8_blockwise_weight_quant(x, 128)",
            {**tensors("bf16", x="256 1024")}, PAIR),
    Forward(AO + "blockwise_quantization", "f.fp8_blockwise_weight_dequant(x, s, 128)",
            {**tensors("fp8e4nv", x="256 1024"), **tensors("fp32", s="2 8")}),
]  # fmt: skip


def made(forward: Forward, module: Any) -> Any:
    """The function that a user would write around the library's."""
    kinds = {n: s for n, s in forward.specs.items() if n != "dims"}
    given = ", ".join(
        f"{n}: {'Tensor' if isinstance(s, TensorSpec) else 'int'}" for n, s in kinds.items()
    )
    space = {"f": module, "Tensor": Tensor}
    exec(f"def {forward.name}({given}) -> {forward.returns}:\n    return {forward.call}", space)  # noqa: S102  # of the table above
    return space[forward.name]


def build(forward: Forward) -> str:
    """A short summary of how a forward function builds."""
    with driver.standing_in(DEFAULT):
        module = importlib.import_module(forward.module)
    op = opforge.op(
        made(forward, module),
        name=f"coverage::{forward.name}_{TABLE.index(forward)}",
        mode="custom_op",
        mutates_args=forward.mutates,
    )
    native.declare(op, **forward.specs)
    declared, entry = expand(op), registry.get(op)
    built = [build_case(entry, declared, case, parse_archs((80, 90))) for case in declared.cases]
    paths = sum(len(b.case.paths) for b in built)
    refused = sum(bool(p.refused) for b in built for p in b.case.paths)
    return f"{paths} paths, {refused} refused, {sum(len(b.requests) for b in built)} kernels"


def main(words: list[str]) -> None:
    # FlagGems looks for a GPU when it is imported, unless it is told the vendor.
    os.environ.setdefault("GEMS_VENDOR", "nvidia")
    built: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for forward in TABLE:
        if words and not any(w in f"{forward.module} {forward.call}" for w in words):
            continue
        began, package = time.perf_counter(), forward.module.partition(".")[0]
        try:
            said, mark = build(forward), "builds"
            built[package] += 1
        except ImportError as error:
            print(f"absent  {forward.name}: {error}")
            continue
        except Exception as error:  # noqa: BLE001  # whatever a library raises is what is reported
            said, mark = f"{type(error).__name__}: {error}", "fails"
        tried[package] += 1
        print(f"{mark:7} {forward.name} in {time.perf_counter() - began:.2f} s: {said}")
    for package, count in tried.items():
        print(f"{package}: {built[package]} of {count} build")
    print(f"{built.total()} of {tried.total()} build")


if __name__ == "__main__":
    main(sys.argv[1:])
