// Stands in for native/cpu.cpp in a test program whose AVX-512 kernels are compiled with portable intrinsics.
#include "kernels.h"
#include "pymagpie_native.h"

const pymagpie::Kernels *const pymagpie::avx2_kernels = nullptr;

const void *pymagpie_kernels(int32_t set) { return set == 2 ? pymagpie::avx512_kernels : nullptr; }
uint32_t pymagpie_instruction_sets(void) { return 1u << 2; }
int32_t pymagpie_lanes(const void *kernels) { return static_cast<const pymagpie::Kernels *>(kernels)->lanes; }
