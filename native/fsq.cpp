// Finite scalar dequantiser: the codes of a frame become its latent vector.
#include "pymagpie_native.h"

void pymagpie_fsq_dequantize(const int32_t *codes, int64_t frames, int32_t codebooks, const int32_t *levels,
                             int32_t dims, float *latents) {
    const int64_t count = frames * codebooks;
    for (int64_t i = 0; i < count; ++i) {
        int32_t rest = codes[i];
        for (int32_t j = 0; j < dims; ++j) {
            const int32_t half = levels[j] / 2;
            // A true division: the product with a rounded reciprocal differs in the last bit.
            latents[i * dims + j] = static_cast<float>(rest % levels[j] - half) / static_cast<float>(half);
            rest /= levels[j];
        }
    }
}
