// What the kernels ask of the compiler beyond C++.
#ifndef PYMAGPIE_COMPILER_H
#define PYMAGPIE_COMPILER_H

// Small loops over a register tile must vanish at compile time, or the tile lives in memory.
#if defined(__clang__)
#define PYMAGPIE_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define PYMAGPIE_UNROLL _Pragma("GCC unroll 16")
#else
#define PYMAGPIE_UNROLL
#endif

// One copy of what runs once a tile.
#if defined(_MSC_VER)
#define PYMAGPIE_NOINLINE __declspec(noinline)
#else
#define PYMAGPIE_NOINLINE __attribute__((noinline))
#endif

#endif
