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

#endif
