/* What the C tests share. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "bitnet.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, bitnet_last_error()); \
            exit(1); \
        } \
    } while (0)
#define REFUSED(call) CHECK((call) == BITNET_ARGUMENT && *bitnet_last_error())

/* A contiguous tensor. */
static inline bitnet_tensor tensor(void *data, int dtype, int dims, const int64_t *sizes)
{
    bitnet_tensor t = {.struct_bytes = sizeof t, .data = data, .dtype = dtype, .dims = dims};
    int64_t stride = 1;
    for (int i = dims - 1; i >= 0; i--) {
        t.sizes[i] = sizes[i];
        t.strides[i] = stride;
        stride *= sizes[i];
    }
    return t;
}
#define TENSOR(data, dtype, dims, ...) tensor(data, dtype, dims, (const int64_t[]){__VA_ARGS__})

#endif
