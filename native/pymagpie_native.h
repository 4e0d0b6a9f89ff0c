/* C interface of pymagpie's native library. */
#ifndef PYMAGPIE_NATIVE_H
#define PYMAGPIE_NATIVE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "../pymagpie/_native.h"

#ifdef __cplusplus
}
#endif

#endif
