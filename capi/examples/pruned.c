/* Prunes a linear layer and multiplies with what is left, on the CPU: pruned [SPARSITY] */
#include <stdio.h>
#include <stdlib.h>

#include "bitnet.h"

enum { N = 512, K = 1024, ROWS = 2 };

static float weights[N * K], input[ROWS * K], output[ROWS * N];

static bitnet_tensor matrix(void *data, int64_t rows, int64_t columns)
{
    return (bitnet_tensor){
        .struct_bytes = sizeof(bitnet_tensor), .data = data, .dtype = BITNET_F32, .dims = 2,
        .sizes = {rows, columns}, .strides = {columns, 1},
    };
}

static int failed(void)
{
    fprintf(stderr, "error: %s\n", bitnet_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    double sparsity = argc > 1 ? atof(argv[1]) : 0.9;
    for (int i = 0; i < N * K; i++)
        weights[i] = (float)(i * 37 % 1001 - 500) / 500;
    for (int i = 0; i < ROWS * K; i++)
        input[i] = (float)(i % 17);

    bitnet_tensor w = matrix(weights, N, K), x = matrix(input, ROWS, K), y = matrix(output, ROWS, N);
    size_t gone;
    if (bitnet_prune(&w, sparsity, &gone) != BITNET_OK)
        return failed();
    bitnet_backend *backend;
    bitnet_layer *layer;
    if (bitnet_backend_open("cpu", &backend) != BITNET_OK)
        return failed();
    if (bitnet_sparse_linear_new(backend, &w, NULL, NULL, &layer) != BITNET_OK)
        return failed();
    /* What comes out, and how much memory a forward takes: on a GPU the workspace is the caller's too. */
    size_t bytes;
    if (bitnet_layer_plan(layer, &x, NULL, &y, &bytes) != BITNET_OK)
        return failed();
    if (bitnet_layer_forward(layer, &x, NULL, &y, NULL, bytes, NULL) != BITNET_OK)
        return failed();
    printf("%zu of %d weights are gone; y[0] = %g, y[last] = %g\n", gone, N * K, output[0], output[ROWS * N - 1]);
    bitnet_layer_free(layer);
    bitnet_backend_free(backend);
    return 0;
}
