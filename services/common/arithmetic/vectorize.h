#ifndef SLUICE_SERVICES_COMMON_ARITHMETIC_VECTORIZE_H_
#define SLUICE_SERVICES_COMMON_ARITHMETIC_VECTORIZE_H_

// Kernels are plain loops that the compiler turns into vector code, once for each instruction set:
// Highway includes the source once per set (hwy/foreach_target.h), under that set's compiler
// options, and picks one at run time. kernels.bzl has the compiler options that this needs.
//
// Why not Highway's own vector operations: elementwise loops gain nothing from them, and the
// optimizers' formulas should read like their papers.

// Put this in front of a loop in which no iteration reads what another one writes. That is true of
// elementwise loops even when an output is exactly an input, which `__restrict` would forbid.
#if defined(__clang__)
#define SLUICE_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define SLUICE_VECTORIZE _Pragma("GCC ivdep")
#endif

#endif  // SLUICE_SERVICES_COMMON_ARITHMETIC_VECTORIZE_H_
