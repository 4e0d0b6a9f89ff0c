// Which instruction sets this build has and this CPU can run.
#include "kernels.h"
#include "pymagpie_native.h"

#if defined(__x86_64__) || defined(_M_X64)
#define PYMAGPIE_X86 1
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace {

enum { PLAIN = 0, AVX2 = 1, AVX512 = 2, NEON = 3 };

#if defined(PYMAGPIE_X86)

struct Registers {
    uint32_t eax, ebx, ecx, edx;
};

Registers cpuid(uint32_t leaf) {
    Registers r = {0, 0, 0, 0};
#if defined(_MSC_VER)
    int v[4];
    __cpuidex(v, static_cast<int>(leaf), 0);
    r = {static_cast<uint32_t>(v[0]), static_cast<uint32_t>(v[1]), static_cast<uint32_t>(v[2]),
         static_cast<uint32_t>(v[3])};
#else
    __cpuid_count(leaf, 0, r.eax, r.ebx, r.ecx, r.edx);
#endif
    return r;
}

// The register state that the operating system saves (XCR0): a CPU feature is usable only with it.
uint64_t saved_state() {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<uint64_t>(high) << 32) | low;
#endif
}

uint32_t x86_sets() {
    if (cpuid(0).eax < 7) {
        return 0;
    }
    const Registers basic = cpuid(1);
    const bool fma = basic.ecx & (1u << 12);
    const bool osxsave = basic.ecx & (1u << 27);
    const bool f16c = basic.ecx & (1u << 29);
    if (!osxsave || !fma || !f16c) {
        return 0;
    }
    const uint64_t state = saved_state();
    const Registers extended = cpuid(7);
    uint32_t sets = 0;
    if ((state & 0x6) == 0x6 && (extended.ebx & (1u << 5))) {
        sets |= 1u << AVX2;
        if ((state & 0xe6) == 0xe6 && (extended.ebx & (1u << 16))) {
            sets |= 1u << AVX512;
        }
    }
    return sets;
}

#endif

uint32_t cpu_sets() {
    uint32_t sets = 1u << PLAIN;
#if defined(PYMAGPIE_X86)
    sets |= x86_sets();
#elif defined(__aarch64__) || defined(_M_ARM64)
    sets |= 1u << NEON;
#endif
    return sets;
}

const pymagpie::Kernels *compiled(int32_t set) {
    switch (set) {
        case PLAIN: return pymagpie::plain_kernels;
        case AVX2: return pymagpie::avx2_kernels;
        case AVX512: return pymagpie::avx512_kernels;
        case NEON: return pymagpie::neon_kernels;
        default: return nullptr;
    }
}

}  // namespace

const void *pymagpie_kernels(int32_t set) {
    const bool known = set >= PLAIN && set <= NEON;
    return known && (cpu_sets() >> set & 1) ? compiled(set) : nullptr;
}

uint32_t pymagpie_instruction_sets(void) {
    uint32_t sets = 0;
    for (int32_t set = PLAIN; set <= NEON; ++set) {
        sets |= static_cast<uint32_t>(pymagpie_kernels(set) != nullptr) << set;
    }
    return sets;
}

int32_t pymagpie_lanes(const void *kernels) { return static_cast<const pymagpie::Kernels *>(kernels)->lanes; }

int32_t pymagpie_abi_version(void) { return 3; }
