/* Convolutions, pruned layers and products with known results, and what they must refuse. Prints "ok" at the end. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"

/* Descriptions that are wrong in themselves. */
static void descriptions(const bitnet_layer *layer, bitnet_tensor good, bitnet_tensor y)
{
    bitnet_tensor bad = good;
    bad.struct_bytes = sizeof bad - 1;
    REFUSED(bitnet_layer_forward(layer, &bad, NULL, &y, NULL, 0, NULL));
    bad.struct_bytes = 0;
    REFUSED(bitnet_layer_plan(layer, &bad, NULL, &y, NULL));
    bad = good;
    bad.dtype = 99;
    REFUSED(bitnet_layer_forward(layer, &bad, NULL, &y, NULL, 0, NULL));
    bad = good;
    for (int dims = -1; dims <= 5; dims += dims == 0 ? 5 : 1) {
        bad.dims = dims;
        REFUSED(bitnet_layer_forward(layer, &bad, NULL, &y, NULL, 0, NULL));
    }
    bad = good;
    bad.sizes[0] = -1;
    REFUSED(bitnet_layer_forward(layer, &bad, NULL, &y, NULL, 0, NULL));
    bad = good;
    bad.strides[0] = -bad.strides[0];
    REFUSED(bitnet_layer_forward(layer, &bad, NULL, &y, NULL, 0, NULL));
    bad = good;
    bad.sizes[0] = INT64_MAX;
    REFUSED(bitnet_layer_forward(layer, &bad, NULL, &y, NULL, 0, NULL));
    bad = good;
    bad.sizes[0] = 1 << 20;
    bad.strides[0] = INT64_MAX / 2;
    REFUSED(bitnet_layer_forward(layer, &bad, NULL, &y, NULL, 0, NULL));
    bad = good;
    bad.data = NULL;
    REFUSED(bitnet_layer_forward(layer, &bad, NULL, &y, NULL, 0, NULL));
    bad = good;
    bad.data = (char *)bad.data + 1;
    REFUSED(bitnet_layer_forward(layer, &bad, NULL, &y, NULL, 0, NULL));
    REFUSED(bitnet_layer_forward(layer, &bad, NULL, NULL, NULL, 0, NULL));
    REFUSED(bitnet_layer_forward(layer, NULL, NULL, &y, NULL, 0, NULL));
    REFUSED(bitnet_layer_forward(NULL, &good, NULL, &y, NULL, 0, NULL));
    REFUSED(bitnet_layer_plan(NULL, &good, NULL, &y, NULL));
    REFUSED(bitnet_layer_plan(layer, NULL, NULL, &y, NULL));
    REFUSED(bitnet_layer_plan(layer, &good, NULL, NULL, NULL));
    bad = y;
    bad.struct_bytes = 8;
    REFUSED(bitnet_layer_plan(layer, &good, NULL, &bad, NULL));
    bad = y;
    bad.dtype = BITNET_I8;
    REFUSED(bitnet_layer_forward(layer, &good, NULL, &bad, NULL, 0, NULL));
    bad = y;
    bad.sizes[1] += 1;
    REFUSED(bitnet_layer_forward(layer, &good, NULL, &bad, NULL, 0, NULL));
}

static void convolutions(const bitnet_backend *backend)
{
    /* One channel of ones, windows of 2 by 2 with weights 1 to 4. */
    float ones[9], w[4] = {1, 2, 3, 4}, b[1] = {0.5f}, y[16];
    for (int i = 0; i < 9; i++)
        ones[i] = 1;
    bitnet_tensor weights = TENSOR(w, BITNET_F32, 4, 1, 1, 2, 2), bias = TENSOR(b, BITNET_F32, 1, 1);
    bitnet_tensor x = TENSOR(ones, BITNET_F32, 4, 1, 1, 3, 3), out = {.struct_bytes = sizeof out, .data = y};
    bitnet_conv2d_options options;
    REFUSED(bitnet_conv2d_options_default(NULL));
    CHECK(bitnet_conv2d_options_default(&options) == BITNET_OK);
    bitnet_layer *layer = (bitnet_layer *)&layer;
    REFUSED(bitnet_conv2d_new(NULL, &weights, &bias, NULL, &layer));
    CHECK(layer == NULL);
    REFUSED(bitnet_conv2d_new(backend, NULL, &bias, NULL, &layer));
    REFUSED(bitnet_conv2d_new(backend, &weights, &bias, NULL, NULL));
    bitnet_tensor bad = weights;
    bad.data = NULL;
    REFUSED(bitnet_conv2d_new(backend, &bad, NULL, NULL, &layer));
    bad = weights;
    bad.dims = 3;
    REFUSED(bitnet_conv2d_new(backend, &bad, NULL, NULL, &layer));
    bad = weights;
    bad.sizes[0] = 0;
    REFUSED(bitnet_conv2d_new(backend, &bad, NULL, NULL, &layer));
    bad = weights;
    bad.strides[3] = 2;
    REFUSED(bitnet_conv2d_new(backend, &bad, NULL, NULL, &layer));
    bad = weights;
    bad.dtype = BITNET_I32;
    REFUSED(bitnet_conv2d_new(backend, &bad, NULL, NULL, &layer));
    bad = bias;
    bad.sizes[0] = 2;
    REFUSED(bitnet_conv2d_new(backend, &weights, &bad, NULL, &layer));
    bitnet_conv2d_options wrong[9];
    for (int i = 0; i < 9; i++)
        wrong[i] = options;
    wrong[0].struct_bytes = 8;
    wrong[1].groups = 2;
    wrong[2].groups = 0;
    wrong[3].pad_mode = 3;
    wrong[4].activation = -1;
    wrong[5].math = 2;
    wrong[6].same = 1;
    wrong[6].padding[0] = 1;
    wrong[7].groups = SIZE_MAX;
    wrong[8].pad_mode = INT32_MIN;
    for (int i = 0; i < 9; i++)
        REFUSED(bitnet_conv2d_new(backend, &weights, NULL, &wrong[i], &layer));
    CHECK(layer == NULL);
    /* What only an image shows. */
    for (int i = 0; i < 4; i++) {
        bitnet_conv2d_options late = options;
        late.stride[0] = i == 0 ? 0 : 1;
        late.dilation[1] = i == 1 ? 9 : 1;
        late.padding[3] = i == 2 ? SIZE_MAX : i == 3 ? 3 : 0;
        late.pad_mode = i == 3 ? BITNET_REFLECT : BITNET_ZEROS;
        CHECK(bitnet_conv2d_new(backend, &weights, NULL, &late, &layer) == BITNET_OK);
        REFUSED(bitnet_layer_plan(layer, &x, NULL, &out, NULL));
        bitnet_layer_free(layer);
    }

    CHECK(bitnet_conv2d_new(backend, &weights, &bias, NULL, &layer) == BITNET_OK);
    size_t bytes = 77;
    CHECK(bitnet_layer_plan(layer, &x, NULL, &out, &bytes) == BITNET_OK && bytes == 0);
    CHECK(out.data == y && out.dtype == BITNET_F32 && out.dims == 4 && out.sizes[1] == 1 && out.sizes[2] == 2 && out.strides[2] == 2);
    memset(y, 0xff, sizeof y);
    CHECK(bitnet_layer_forward(layer, &x, NULL, &out, NULL, 0, NULL) == BITNET_OK);
    for (int i = 0; i < 4; i++)
        CHECK(y[i] == 10.5f);
    float r[4] = {1, 2, 3, -40};
    bitnet_tensor residual = TENSOR(r, BITNET_F32, 4, 1, 1, 2, 2);
    CHECK(bitnet_layer_forward(layer, &x, &residual, &out, NULL, 0, NULL) == BITNET_OK);
    CHECK(y[0] == 11.5f && y[3] == -29.5f);
    residual.dtype = BITNET_BF16;
    REFUSED(bitnet_layer_forward(layer, &x, &residual, &out, NULL, 0, NULL));
    descriptions(layer, x, out);
    bad = x;
    bad.strides[2] = 4;
    REFUSED(bitnet_layer_forward(layer, &bad, NULL, &out, NULL, 0, NULL));
    bad = x;
    bad.dtype = BITNET_F16;
    REFUSED(bitnet_layer_plan(layer, &bad, NULL, &out, NULL));
    /* No images. */
    bitnet_tensor none = TENSOR(NULL, BITNET_F32, 4, 0, 1, 3, 3), nothing = {.struct_bytes = sizeof nothing};
    CHECK(bitnet_layer_plan(layer, &none, NULL, &nothing, NULL) == BITNET_OK && nothing.sizes[0] == 0);
    CHECK(bitnet_layer_forward(layer, &none, NULL, &nothing, NULL, 0, NULL) == BITNET_OK);
    bitnet_layer_free(layer);
    bitnet_layer_free(NULL);

    /* `same`, mirrored, with ReLU. */
    options.same = 1;
    options.pad_mode = BITNET_REFLECT;
    options.activation = BITNET_RELU;
    b[0] = -10.25f;
    CHECK(bitnet_conv2d_new(backend, &weights, &bias, &options, &layer) == BITNET_OK);
    CHECK(bitnet_layer_plan(layer, &x, NULL, &out, NULL) == BITNET_OK && out.sizes[2] == 3 && out.sizes[3] == 3);
    CHECK(bitnet_layer_forward(layer, &x, NULL, &out, NULL, 0, NULL) == BITNET_OK && y[0] == 0 && y[8] == 0);
    bitnet_layer_free(layer);

    /* Ternary: 127 is quantised to itself. */
    int8_t t[4] = {1, 0, -1, 1};
    for (int i = 0; i < 9; i++)
        ones[i] = (float)(127 - i);
    weights = TENSOR(t, BITNET_I8, 4, 1, 1, 2, 2);
    CHECK(bitnet_conv2d_options_default(&options) == BITNET_OK);
    options.scale = 0.5f;
    CHECK(bitnet_conv2d_new(backend, &weights, NULL, &options, &layer) == BITNET_OK);
    CHECK(bitnet_layer_plan(layer, &x, NULL, &out, NULL) == BITNET_OK);
    CHECK(bitnet_layer_forward(layer, &x, NULL, &out, NULL, 0, NULL) == BITNET_OK);
    CHECK(y[0] == 63 && y[3] == 61);
    bitnet_layer_free(layer);
    t[0] = 2;
    REFUSED(bitnet_conv2d_new(backend, &weights, NULL, &options, &layer));
    t[0] = 1;
    options.scale = NAN;
    REFUSED(bitnet_conv2d_new(backend, &weights, NULL, &options, &layer));
}

static void pruned(const bitnet_backend *backend)
{
    enum { N = 3, K = 5, M = 2 };
    float w[N * K] = {1, -9, 2, 0.5f, 8, 3, -0.25f, 7, 6, 5, 4, 0.75f, -10, 11, 12}, x[M * K], y[M * N];
    bitnet_tensor weights = TENSOR(w, BITNET_F32, 2, N, K), input = TENSOR(x, BITNET_F32, 2, M, K);
    bitnet_tensor out = {.struct_bytes = sizeof out, .data = y};
    size_t gone = 0;
    REFUSED(bitnet_prune(NULL, 0.2, &gone));
    REFUSED(bitnet_prune(&weights, 1.5, &gone));
    REFUSED(bitnet_prune(&weights, NAN, &gone));
    bitnet_tensor bad = weights;
    bad.dtype = BITNET_I8;
    REFUSED(bitnet_prune(&bad, 0.2, &gone));
    bad = weights;
    bad.strides[0] = K + 1;
    REFUSED(bitnet_prune(&bad, 0.2, &gone));
    CHECK(bitnet_prune(&weights, 0.2, NULL) == BITNET_OK && bitnet_prune(&weights, 0.2, &gone) == BITNET_OK && gone == 3);
    CHECK(w[3] == 0 && w[6] == 0 && w[11] == 0 && w[0] == 1);
    for (int i = 0; i < M * K; i++)
        x[i] = (float)(i + 1);

    bitnet_layer *layer = (bitnet_layer *)&layer;
    bitnet_sparse_options how;
    REFUSED(bitnet_sparse_options_default(NULL));
    CHECK(bitnet_sparse_options_default(&how) == BITNET_OK && how.format == BITNET_BITMAP);
    REFUSED(bitnet_sparse_linear_new(NULL, &weights, NULL, &how, &layer));
    CHECK(layer == NULL);
    REFUSED(bitnet_sparse_linear_new(backend, NULL, NULL, &how, &layer));
    REFUSED(bitnet_sparse_linear_new(backend, &weights, NULL, &how, NULL));
    REFUSED(bitnet_sparse_linear_new(backend, &weights, &weights, &how, &layer));
    bitnet_sparse_options wrong[7];
    for (int i = 0; i < 7; i++)
        wrong[i] = how;
    wrong[0].struct_bytes = 4;
    wrong[1].format = 3;
    wrong[2].math = 7;
    wrong[3].math = BITNET_TENSOR_CORE;
    wrong[4].math = BITNET_TENSOR_CORE;
    wrong[4].format = BITNET_CSR;
    wrong[5].format = BITNET_TERNARY_BITMAP;
    wrong[6].activation = 4;
    for (int i = 0; i < 7; i++)
        REFUSED(bitnet_sparse_linear_new(backend, &weights, NULL, &wrong[i], &layer));
    for (int i = 0; i < 2; i++) {
        bad = weights;
        bad.sizes[i] = 0;
        how.format = i;
        REFUSED(bitnet_sparse_linear_new(backend, &bad, NULL, &how, &layer));
    }
    float bias[N] = {0.5f, 0, -100}, r[M * N] = {1, 1, 1, 1, 1, 1};
    bitnet_tensor shift = TENSOR(bias, BITNET_F32, 1, N), residual = TENSOR(r, BITNET_F32, 2, M, N);
    for (how.format = BITNET_CSR; how.format <= BITNET_BITMAP; how.format++) {
        CHECK(bitnet_sparse_linear_new(backend, &weights, NULL, &how, &layer) == BITNET_OK);
        size_t bytes = 77;
        CHECK(bitnet_layer_plan(layer, &input, NULL, &out, &bytes) == BITNET_OK && bytes == 0 && out.sizes[1] == N);
        memset(y, 0xff, sizeof y);
        CHECK(bitnet_layer_forward(layer, &input, NULL, &out, NULL, 0, NULL) == BITNET_OK);
        CHECK(y[0] == 29 && y[1] == 73 && y[2] == 78 && y[3] == 39 && y[5] == 163);
        descriptions(layer, input, out);
        bad = input;
        bad.sizes[1] = K - 1;
        REFUSED(bitnet_layer_plan(layer, &bad, NULL, &out, NULL));
        bitnet_layer_free(layer);
        bitnet_sparse_options relu = how;
        relu.activation = BITNET_RELU;
        CHECK(bitnet_sparse_linear_new(backend, &weights, &shift, &relu, &layer) == BITNET_OK);
        CHECK(bitnet_layer_forward(layer, &input, &residual, &out, NULL, 0, NULL) == BITNET_OK);
        CHECK(y[0] == 30.5f && y[1] == 74 && y[2] == 0 && y[5] == 64);
        bitnet_layer_free(layer);
    }

    int8_t t[N * K] = {1, 1, 1, 1, 1, 0, 0, 0, 0, 0, -1, 0, 1, 0, -1};
    float q[K] = {127, 1, 2, 3, 4};
    weights = TENSOR(t, BITNET_I8, 2, N, K);
    input = TENSOR(q, BITNET_F32, 1, K);
    how.format = BITNET_TERNARY_BITMAP;
    how.scale = 0;
    REFUSED(bitnet_sparse_linear_new(backend, &weights, NULL, &how, &layer));
    how.scale = 0.5f;
    CHECK(bitnet_sparse_linear_new(backend, &weights, NULL, &how, &layer) == BITNET_OK);
    CHECK(bitnet_layer_plan(layer, &input, NULL, &out, NULL) == BITNET_OK && out.dims == 1 && out.sizes[0] == N);
    CHECK(bitnet_layer_forward(layer, &input, NULL, &out, NULL, 0, NULL) == BITNET_OK);
    CHECK(y[0] == 68.5f && y[1] == 0 && y[2] == -64.5f);
    bitnet_layer_free(layer);

    /* A window of 1 by 2 over two channels, channels last. */
    float c[4] = {1, 2, 0, 3}, image[6] = {1, 10, 2, 20, 3, 30};
    weights = TENSOR(c, BITNET_F32, 4, 1, 2, 1, 2);
    bitnet_tensor planes = TENSOR(image, BITNET_F32, 4, 1, 2, 1, 3);
    bitnet_conv2d_options options;
    CHECK(bitnet_conv2d_options_default(&options) == BITNET_OK);
    options.padding[0] = 1;
    REFUSED(bitnet_sparse_conv2d_new(backend, &weights, NULL, &options, &layer));
    options.padding[0] = 0;
    options.groups = 2;
    REFUSED(bitnet_sparse_conv2d_new(backend, &weights, NULL, &options, &layer));
    options.groups = 1;
    for (int i = 0; i < 3; i++) {
        bitnet_conv2d_options far = options;
        far.stride[1] = i == 0 ? 0 : 1;
        far.dilation[1] = i == 1 ? SIZE_MAX : 1;
        far.padding[0] = far.padding[1] = i == 2 ? SIZE_MAX : 0;
        REFUSED(bitnet_sparse_conv2d_new(backend, &weights, NULL, &far, &layer));
    }
    CHECK(bitnet_sparse_conv2d_new(backend, &weights, NULL, NULL, &layer) == BITNET_OK);
    REFUSED(bitnet_layer_plan(layer, &planes, NULL, &out, NULL));
    bitnet_tensor last = planes;
    last.strides[1] = 1;
    last.strides[3] = 2;
    CHECK(bitnet_layer_plan(layer, &last, NULL, &out, NULL) == BITNET_OK && out.sizes[3] == 2);
    CHECK(bitnet_layer_forward(layer, &last, NULL, &out, NULL, 0, NULL) == BITNET_OK);
    CHECK(y[0] == 1 + 2 * 2 + 3 * 20 && y[1] == 2 + 2 * 3 + 3 * 30);
    bitnet_layer_free(layer);

    int32_t pays = -1;
    REFUSED(bitnet_sparse_pays_off(4096, 4096, 1, 0.9, BITNET_EXACT, NULL));
    REFUSED(bitnet_sparse_pays_off(4096, 4096, 1, 0.9, 2, &pays));
    CHECK(bitnet_sparse_pays_off(4096, 4096, 1, 0.9, BITNET_EXACT, &pays) == BITNET_OK && pays == 1);
    CHECK(bitnet_sparse_pays_off(4096, 4096, 1, NAN, BITNET_EXACT, &pays) == BITNET_OK && pays == 0);
}

/* Two rows at the ends of 64 GiB, with no memory between them. */
static void rows_far_apart(const bitnet_backend *backend)
{
    const size_t page = 1 << 16, far = (size_t)1 << 36;
    char *room = mmap(NULL, far + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED);
    CHECK(mprotect(room, page, PROT_READ | PROT_WRITE) == 0 && mprotect(room + far, page, PROT_READ | PROT_WRITE) == 0);
    float *first = (float *)room, *second = (float *)(room + far), b[4] = {1, 2, 3, 4}, c[4];
    first[0] = 1, first[1] = 0, second[0] = 0, second[1] = 1;
    bitnet_tensor ta = TENSOR(room, BITNET_F32, 2, 2, 2), tb = TENSOR(b, BITNET_F32, 2, 2, 2), tc = TENSOR(c, BITNET_F32, 2, 2, 2);
    ta.strides[0] = far / sizeof *first;
    CHECK(bitnet_bmm(backend, &ta, &tb, &tc, NULL, NULL, 0, NULL) == BITNET_OK && memcmp(b, c, sizeof c) == 0);
    tc = ta;
    ta = TENSOR(b, BITNET_F32, 2, 2, 2);
    CHECK(bitnet_bmm(backend, &ta, &tb, &tc, NULL, NULL, 0, NULL) == BITNET_OK && first[0] == 7 && second[1] == 22);
    munmap(room, far + page);
}

static void products(const bitnet_backend *backend)
{
    float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 0, 0, 1, 1, 1}, c[4];
    bitnet_tensor ta = TENSOR(a, BITNET_F32, 2, 2, 3), tb = TENSOR(b, BITNET_F32, 2, 3, 2), tc = TENSOR(c, BITNET_F32, 2, 2, 2);
    size_t bytes = 77;
    REFUSED(bitnet_bmm_workspace(NULL, &ta, &tb, &tc, NULL, &bytes));
    REFUSED(bitnet_bmm_workspace(backend, &ta, &tb, &tc, NULL, NULL));
    CHECK(bitnet_bmm_workspace(backend, &ta, &tb, &tc, NULL, &bytes) == BITNET_OK && bytes == 0);
    REFUSED(bitnet_bmm(NULL, &ta, &tb, &tc, NULL, NULL, 0, NULL));
    REFUSED(bitnet_bmm(backend, NULL, &tb, &tc, NULL, NULL, 0, NULL));
    REFUSED(bitnet_bmm(backend, &ta, &tb, NULL, NULL, NULL, 0, NULL));
    REFUSED(bitnet_bmm(backend, &ta, &ta, &tc, NULL, NULL, 0, NULL));
    memset(c, 0xff, sizeof c);
    CHECK(bitnet_bmm(backend, &ta, &tb, &tc, NULL, NULL, 0, NULL) == BITNET_OK);
    CHECK(c[0] == 4 && c[1] == 5 && c[2] == 10 && c[3] == 11);
    bitnet_bmm_options options = {.struct_bytes = sizeof options, .alpha = 2, .beta = 0.5f};
    CHECK(bitnet_bmm(backend, &ta, &tb, &tc, &options, NULL, 0, NULL) == BITNET_OK && c[0] == 10 && c[3] == 27.5f);
    options.math = 5;
    REFUSED(bitnet_bmm(backend, &ta, &tb, &tc, &options, NULL, 0, NULL));
    options.struct_bytes = 1;
    REFUSED(bitnet_bmm(backend, &ta, &tb, &tc, &options, NULL, 0, NULL));
    /* b as the transpose of what lies there. */
    bitnet_tensor bad = tb;
    bad.strides[0] = 1;
    bad.strides[1] = 3;
    CHECK(bitnet_bmm(backend, &ta, &bad, &tc, NULL, NULL, 0, NULL) == BITNET_OK && c[0] == 1 && c[1] == 6 && c[3] == 15);
    bad.strides[0] = 2;
    bad.strides[1] = 2;
    REFUSED(bitnet_bmm(backend, &ta, &bad, &tc, NULL, NULL, 0, NULL));
    bad = tc;
    bad.strides[0] = 1;
    bad.strides[1] = 2;
    REFUSED(bitnet_bmm(backend, &ta, &tb, &bad, NULL, NULL, 0, NULL));
    bad.strides[0] = 0;
    bad.strides[1] = 1;
    REFUSED(bitnet_bmm(backend, &ta, &tb, &bad, NULL, NULL, 0, NULL));
    bad = tc;
    bad.data = NULL;
    REFUSED(bitnet_bmm(backend, &ta, &tb, &bad, NULL, NULL, 0, NULL));
    bad.data = (char *)c + 2;
    REFUSED(bitnet_bmm(backend, &ta, &tb, &bad, NULL, NULL, 0, NULL));
    /* A batch whose results would share their place. */
    bitnet_tensor many[3] = {TENSOR(a, BITNET_F32, 3, 2, 1, 3), TENSOR(b, BITNET_F32, 3, 2, 3, 1), TENSOR(c, BITNET_F32, 3, 2, 1, 1)};
    many[1].strides[0] = 0;
    CHECK(bitnet_bmm(backend, &many[0], &many[1], &many[2], NULL, NULL, 0, NULL) == BITNET_OK && c[0] == 1 && c[1] == 4);
    many[2].strides[0] = 0;
    REFUSED(bitnet_bmm(backend, &many[0], &many[1], &many[2], NULL, NULL, 0, NULL));
    /* No terms. */
    ta = TENSOR(NULL, BITNET_F32, 2, 2, 0);
    tb = TENSOR(NULL, BITNET_F32, 2, 0, 2);
    CHECK(bitnet_bmm(backend, &ta, &tb, &tc, NULL, NULL, 0, NULL) == BITNET_OK && c[0] == 0 && c[3] == 0);
    /* Integers. */
    int8_t i[4] = {127, -128, 3, 4};
    int32_t sums[4];
    ta = TENSOR(i, BITNET_I8, 2, 2, 2);
    tc = TENSOR(sums, BITNET_I32, 2, 2, 2);
    CHECK(bitnet_bmm(backend, &ta, &ta, &tc, NULL, NULL, 0, NULL) == BITNET_OK && sums[0] == 127 * 127 - 384 && sums[3] == -368);
    options = (bitnet_bmm_options){.struct_bytes = sizeof options, .alpha = 0.5f};
    REFUSED(bitnet_bmm(backend, &ta, &ta, &tc, &options, NULL, 0, NULL));
}

int main(void)
{
    bitnet_backend *backend;
    CHECK(bitnet_backend_open("cpu", &backend) == BITNET_OK);
    convolutions(backend);
    pruned(backend);
    products(backend);
    rows_far_apart(backend);
    bitnet_backend_free(backend);
    printf("ok %s\n", bitnet_version());
    return 0;
}
