"""Compiler options of targets whose loops are compiled for several instruction sets (vectorize.h)."""

KERNEL_COPTS = [
    # At -O2 the compiler vectorizes only loops that are certain to become faster.
    "-O3",
    # A fused multiply-add rounds once where a product and a sum round twice, and not every machine
    # has it. Without it, a shard on any machine computes the same bits.
    "-ffp-contract=off",
    # Neither changes a result: nothing here reads errno or the floating-point exception flags, and
    # without them square roots and selections become vector code.
    "-fno-math-errno",
    "-fno-trapping-math",
]

# Three sets are enough: the baseline (SSE2), AVX2 and AVX-512.
KERNEL_DEFINES = ["HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL)"]
