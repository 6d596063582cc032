"""Which of ggml's CPU back ends the engine should have picked on a host. Pure."""

from __future__ import annotations

from collections.abc import Collection

BASELINES = ("x64", "armv8.0_1")
"""Built without SIMD extensions: about 20 times slower."""

# Best first, each with the flags of /proc/cpuinfo that it needs: the variants in
# ggml/src/CMakeLists.txt, in the order of the scores in ggml/src/ggml-cpu/arch/*/cpu-feats.cpp.
_AVX2 = {"avx2", "fma", "f16c", "bmi2"}
_AVX512 = {*_AVX2, "avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}
_ARM = {"asimddp", "fphp", "asimdhp"}
VARIANTS: dict[str, dict[str, set[str]]] = {
    "x86_64": {
        "sapphirerapids": {*_AVX512, "avx512vbmi", "avx512_vnni", "avx512_bf16", "amx_tile",
                           "amx_int8"},
        "zen4": {*_AVX512, "avx512vbmi", "avx512_vnni", "avx512_bf16"},
        "cooperlake": {*_AVX512, "avx512_vnni", "avx512_bf16"},
        "icelake": {*_AVX512, "avx512vbmi", "avx512_vnni"},
        "cascadelake": {*_AVX512, "avx512_vnni"},
        "cannonlake": {*_AVX512, "avx512vbmi"},
        "skylakex": _AVX512,
        "alderlake": {*_AVX2, "avx_vnni"},
        "haswell": _AVX2,
        "piledriver": {"avx", "fma", "f16c"},
        "ivybridge": {"avx", "f16c"},
        "sandybridge": {"avx"},
        "sse42": {"sse4_2"},
        "x64": set(),
    },
    "aarch64": {
        "armv9.2_2": {*_ARM, "i8mm", "sve", "sve2", "sme"},
        "armv9.2_1": {*_ARM, "i8mm", "sme"},
        "armv8.6_2": {*_ARM, "i8mm", "sve", "sve2"},
        "armv8.6_1": {*_ARM, "i8mm", "sve"},
        "armv8.2_3": {*_ARM, "sve"},
        "armv8.2_2": _ARM,
        "armv8.2_1": {"asimddp"},
        "armv8.0_1": set(),
    },
}  # fmt: skip


def expected(arch: str, flags: Collection[str], shipped: Collection[str]) -> str | None:
    """The best of the shipped variants that a CPU with these flags runs; None if none is known."""
    for name, needed in VARIANTS.get(arch, {}).items():
        if name in shipped and needed <= set(flags):
            return name
    return None
