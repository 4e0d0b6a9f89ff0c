// Runs custom ops that another process describes, so that the Python tests can test kernels built for another CPU under
// an emulator. It is linked with the sources in native/.
//
// A request on standard input, in host byte order: int32 op (0 conv, 1 upsample, 2 refresh), int32 threads, int32
// instruction set, int32 in_channels, taps, dilation, raw, activations, float scale, int32 number of tensors, then
// dst and the sources: int64 ne[4] and the float32 data; ne[0] = 0 is a null source and ne[0] = -1 is dst itself.
// The answer on standard output is the data of dst. On start the runner writes the mask of instruction sets and, for
// each of the four, its vector width as int32.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pymagpie_native.h"

namespace {

struct Tensor {
    int64_t ne[4];
    uint64_t nb[4];
    void *src[10];
    void *data;
};

bool get(void *p, size_t size) { return fread(p, 1, size, stdin) == size; }

void need(bool ok) {
    if (!ok) {
        fprintf(stderr, "runner: broken request\n");
        exit(2);
    }
}

struct Request {
    int32_t op, threads, set, in_channels, taps, dilation, raw, activations;
    float scale;
    int32_t tensors;
};

void answer(const Request &r) {
    Tensor tensors[10] = {};
    need(r.tensors >= 1 && r.tensors <= 10);
    for (int i = 0; i < r.tensors; ++i) {
        Tensor &t = tensors[i];
        need(get(t.ne, sizeof(t.ne)));
        if (t.ne[0] > 0) {
            t.nb[0] = sizeof(float);
            for (int d = 1; d < 4; ++d) {
                t.nb[d] = t.nb[d - 1] * static_cast<uint64_t>(t.ne[d - 1]);
            }
            const size_t size = t.nb[3] * static_cast<uint64_t>(t.ne[3]);
            t.data = malloc(size);
            need(t.data && get(t.data, size));
        }
        if (i > 0) {
            tensors[0].src[i - 1] = t.ne[0] < 0 ? &tensors[0] : t.ne[0] == 0 ? nullptr : &t;
        }
    }
    pymagpie_op_params params = {};
    params.kernels = pymagpie_kernels(r.set);
    params.layout = {offsetof(Tensor, ne), offsetof(Tensor, nb), offsetof(Tensor, src), offsetof(Tensor, data)};
    params.in_channels = r.in_channels;
    params.taps = r.taps;
    params.dilation = r.dilation;
    params.raw = r.raw;
    params.activations = r.activations;
    params.scale = r.scale;
    need(r.op >= 0 && r.op <= 2 && (params.kernels || r.op == 2));
    void (*const ops[])(void *, int, int, void *) = {pymagpie_conv, pymagpie_upsample, pymagpie_refresh};
    for (int thread = r.threads - 1; thread >= 0; --thread) {
        ops[r.op](&tensors[0], thread, r.threads, &params);
    }
    fwrite(tensors[0].data, 1, tensors[0].nb[3] * static_cast<uint64_t>(tensors[0].ne[3]), stdout);
    fflush(stdout);
    for (const Tensor &t : tensors) {
        free(t.data);
    }
}

}  // namespace

int main() {
    int32_t hello[5] = {static_cast<int32_t>(pymagpie_instruction_sets())};
    for (int32_t set = 0; set < 4; ++set) {
        const void *kernels = pymagpie_kernels(set);
        hello[1 + set] = kernels ? pymagpie_lanes(kernels) : 0;
    }
    fwrite(hello, sizeof(hello), 1, stdout);
    fflush(stdout);
    Request request;
    while (get(&request, sizeof(request))) {
        answer(request);
    }
    return 0;
}
