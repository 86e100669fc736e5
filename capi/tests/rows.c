/* Rows, elements, pooling and lookups with known results, and what they must refuse. Prints "ok" at the end. */
#include <math.h>
#include <string.h>

#include "check.h"

/* Two rows of four. */
static const float numbers[8] = {1, 2, 3, 4, -1, 0, 1, 2};

/* What a layer makes of x, whose shape y has to have; it is freed. */
static void forward(bitnet_layer *layer, const bitnet_tensor *x, const bitnet_tensor *other, const bitnet_tensor *y)
{
    size_t bytes = 77;
    bitnet_tensor shape = {.struct_bytes = sizeof shape};
    CHECK(bitnet_layer_plan(layer, x, other, &shape, &bytes) == BITNET_OK && bytes == 0);
    CHECK(shape.dims == y->dims && shape.dtype == y->dtype);
    for (int i = 0; i < y->dims; i++)
        CHECK(shape.sizes[i] == y->sizes[i] && (shape.strides[i] == y->strides[i] || y->sizes[i] < 2));
    memset(y->data, 0xff, (size_t)(y->sizes[0] * y->strides[0]) * 4);
    CHECK(bitnet_layer_forward(layer, x, other, y, NULL, 0, NULL) == BITNET_OK);
    bitnet_layer_free(layer);
}

static void refuses(bitnet_layer *layer, const bitnet_tensor *x, const bitnet_tensor *other)
{
    bitnet_tensor y = {.struct_bytes = sizeof y};
    REFUSED(bitnet_layer_plan(layer, x, other, &y, NULL));
}

static int near(float found, double wanted)
{
    return fabs(found - wanted) <= 1e-6 * (fabs(wanted) + 1);
}

static void softmax(const bitnet_backend *backend)
{
    float in[8], y[8], mask[4] = {0, 0, 0, -INFINITY};
    memcpy(in, numbers, sizeof in);
    bitnet_tensor x = TENSOR(in, BITNET_F32, 2, 2, 4), out = TENSOR(y, BITNET_F32, 2, 2, 4);
    bitnet_tensor row = TENSOR(mask, BITNET_F32, 2, 1, 4);
    bitnet_softmax_options options;
    bitnet_layer *layer = (bitnet_layer *)&layer;
    REFUSED(bitnet_softmax_options_default(NULL));
    CHECK(bitnet_softmax_options_default(&options) == BITNET_OK);
    REFUSED(bitnet_softmax_new(NULL, &options, &layer));
    CHECK(layer == NULL);
    REFUSED(bitnet_softmax_new(backend, &options, NULL));
    options.scale = NAN;
    REFUSED(bitnet_softmax_new(backend, &options, &layer));
    options.scale = 1;
    options.struct_bytes = 4;
    REFUSED(bitnet_softmax_new(backend, &options, &layer));
    options.struct_bytes = sizeof options;

    double sum = exp(-3) + exp(-2) + exp(-1) + 1;
    CHECK(bitnet_softmax_new(backend, NULL, &layer) == BITNET_OK);
    forward(layer, &x, NULL, &out);
    for (int i = 0; i < 8; i++)
        CHECK(near(y[i], exp(i % 4 - 3) / sum));
    options.scale = 0.5f;
    options.log = 1;
    CHECK(bitnet_softmax_new(backend, &options, &layer) == BITNET_OK);
    forward(layer, &x, &row, &out);
    for (int i = 0; i < 8; i++)
        CHECK(i % 4 == 3 ? y[i] == -INFINITY : near(y[i], (i % 4 - 2) * 0.5 - log(exp(-1) + exp(-0.5) + 1)));

    /* Two queries of four keys: the first sees three. */
    options.scale = 1;
    options.log = 0;
    options.causal = 1;
    CHECK(bitnet_softmax_new(backend, &options, &layer) == BITNET_OK);
    refuses(layer, &x, &row);
    bitnet_tensor bad = TENSOR(in, BITNET_F32, 1, 8);
    refuses(layer, &bad, NULL);
    bad = TENSOR(in, BITNET_F32, 2, 4, 2);
    refuses(layer, &bad, NULL);
    forward(layer, &x, NULL, &out);
    CHECK(y[3] == 0 && near(y[2], 1 / (exp(-2) + exp(-1) + 1)) && near(y[7], 1 / sum));

    CHECK(bitnet_softmax_new(backend, NULL, &layer) == BITNET_OK);
    bad = TENSOR(in, BITNET_I8, 2, 2, 4);
    refuses(layer, &bad, NULL);
    bad = x;
    bad.strides[1] = 2;
    refuses(layer, &bad, NULL);
    bad = TENSOR(mask, BITNET_F16, 1, 4);
    refuses(layer, &x, &bad);
    bad = TENSOR(mask, BITNET_F32, 2, 2, 2);
    refuses(layer, &x, &bad);
    /* Nothing to do. */
    x = TENSOR(NULL, BITNET_F32, 2, 2, 0);
    out = TENSOR(NULL, BITNET_F32, 2, 2, 0);
    CHECK(bitnet_layer_forward(layer, &x, NULL, &out, NULL, 0, NULL) == BITNET_OK);
    bitnet_layer_free(layer);
}

static void norms(const bitnet_backend *backend)
{
    float in[8], y[8], sum[8], gain[4] = {1, 2, 3, 4}, offset[4] = {0, 0, 0, 1};
    memcpy(in, numbers, sizeof in);
    bitnet_tensor x = TENSOR(in, BITNET_F32, 2, 2, 4), out = TENSOR(y, BITNET_F32, 2, 2, 4);
    bitnet_tensor residual = TENSOR(sum, BITNET_F32, 2, 2, 4);
    bitnet_tensor weight = TENSOR(gain, BITNET_F32, 1, 4), bias = TENSOR(offset, BITNET_F32, 1, 4), bad = weight;
    bitnet_layer *layer = (bitnet_layer *)&layer;
    REFUSED(bitnet_rmsnorm_new(backend, NULL, 0, &layer));
    CHECK(layer == NULL);
    REFUSED(bitnet_rmsnorm_new(NULL, &weight, 0, &layer));
    REFUSED(bitnet_rmsnorm_new(backend, &weight, 0, NULL));
    REFUSED(bitnet_rmsnorm_new(backend, &weight, NAN, &layer));
    REFUSED(bitnet_rmsnorm_new(backend, &weight, -1, &layer));
    bad = TENSOR(gain, BITNET_F32, 2, 2, 2);
    REFUSED(bitnet_rmsnorm_new(backend, &bad, 0, &layer));
    bad = TENSOR(NULL, BITNET_F32, 1, 4);
    REFUSED(bitnet_rmsnorm_new(backend, &bad, 0, &layer));
    bad = TENSOR(gain, BITNET_I8, 1, 4);
    REFUSED(bitnet_rmsnorm_new(backend, &bad, 0, &layer));
    bad = TENSOR(offset, BITNET_F32, 1, 3);
    REFUSED(bitnet_layernorm_new(backend, &weight, &bad, 0, &layer));
    bad = TENSOR(offset, BITNET_F16, 1, 4);
    REFUSED(bitnet_layernorm_new(backend, &weight, &bad, 0, &layer));

    CHECK(bitnet_rmsnorm_new(backend, &weight, 0.5f, &layer) == BITNET_OK);
    bad = TENSOR(in, BITNET_F32, 2, 4, 2);
    refuses(layer, &bad, NULL);
    bad = TENSOR(in, BITNET_F16, 2, 2, 4);
    refuses(layer, &bad, NULL);
    forward(layer, &x, NULL, &out);
    for (int i = 0; i < 4; i++)
        CHECK(near(y[i], numbers[i] / sqrt(8) * gain[i]) && in[i] == numbers[i]);
    /* The residual becomes the sum. */
    for (int i = 0; i < 8; i++)
        sum[i] = -1;
    CHECK(bitnet_rmsnorm_new(backend, &weight, 0, &layer) == BITNET_OK);
    bad = TENSOR(sum, BITNET_F32, 2, 1, 4);
    refuses(layer, &x, &bad);
    forward(layer, &x, &residual, &out);
    for (int i = 0; i < 8; i++)
        CHECK(sum[i] == numbers[i] - 1 && in[i] == numbers[i]);
    CHECK(y[0] == 0 && near(y[3], 3 / sqrt(3.5) * 4) && near(y[4], -2 / sqrt(1.5)));

    for (int i = 0; i < 8; i++)
        sum[i] = 10;
    CHECK(bitnet_layernorm_new(backend, &weight, &bias, 0.75f, &layer) == BITNET_OK);
    forward(layer, &x, &residual, &out);
    CHECK(sum[0] == 11 && near(y[0], -1.5 / sqrt(2)) && near(y[3], 1.5 / sqrt(2) * 4 + 1) && near(y[7], y[3]));
    CHECK(bitnet_layernorm_new(backend, NULL, &bias, 0.75f, &layer) == BITNET_OK);
    forward(layer, &x, NULL, &out);
    CHECK(near(y[2], 0.5 / sqrt(2)) && near(y[3], 1.5 / sqrt(2) + 1));
    CHECK(bitnet_layernorm_new(backend, NULL, NULL, 0.75f, &layer) == BITNET_OK);
    forward(layer, &x, NULL, &out);
    CHECK(near(y[3], 1.5 / sqrt(2)));
}

static void elements(const bitnet_backend *backend)
{
    float in[8], y[8], row[2] = {10, 20};
    memcpy(in, numbers, sizeof in);
    bitnet_tensor x = TENSOR(in, BITNET_F32, 2, 2, 4), out = TENSOR(y, BITNET_F32, 2, 2, 4);
    bitnet_tensor pairs = TENSOR(in, BITNET_F32, 2, 4, 2), out_pairs = TENSOR(y, BITNET_F32, 2, 4, 2);
    bitnet_tensor other = TENSOR(row, BITNET_F32, 1, 2), bad = other;
    bitnet_layer *layer = (bitnet_layer *)&layer;
    REFUSED(bitnet_activation_new(NULL, BITNET_RELU, 0, &layer));
    CHECK(layer == NULL);
    REFUSED(bitnet_activation_new(backend, BITNET_RELU, 0, NULL));
    REFUSED(bitnet_activation_new(backend, BITNET_NONE, 0, &layer));
    REFUSED(bitnet_activation_new(backend, 6, 0, &layer));
    CHECK(bitnet_activation_new(backend, BITNET_RELU2, 0, &layer) == BITNET_OK);
    bad = TENSOR(row, BITNET_F32, 1, 2);
    refuses(layer, &x, &bad);
    forward(layer, &x, NULL, &out);
    CHECK(y[3] == 16 && y[4] == 0 && y[7] == 4);
    CHECK(bitnet_activation_new(backend, BITNET_GELU, 0, &layer) == BITNET_OK);
    forward(layer, &x, NULL, &out);
    CHECK(near(y[0], 0.841344746) && near(y[4], -0.158655254));
    float factor[8] = {3, 3, 3, 3, 2, 2, 2, 2};
    bitnet_tensor up = TENSOR(factor, BITNET_F32, 2, 2, 4);
    CHECK(bitnet_activation_new(backend, BITNET_SILU, 0, &layer) == BITNET_OK);
    forward(layer, &x, &up, &out);
    CHECK(near(y[0], 3 / (1 + exp(-1))) && near(y[4], -2 / (1 + exp(1))));
    /* A gate, and behind it its factor. */
    bitnet_tensor half = TENSOR(y, BITNET_F32, 2, 2, 2);
    CHECK(bitnet_activation_new(backend, BITNET_RELU, 1, &layer) == BITNET_OK);
    refuses(layer, &x, &up);
    bad = TENSOR(in, BITNET_F32, 2, 1, 3);
    refuses(layer, &bad, NULL);
    forward(layer, &x, NULL, &half);
    CHECK(y[0] == 3 && y[1] == 8 && y[2] == 0 && y[3] == 0);

    bitnet_elementwise_options options;
    REFUSED(bitnet_elementwise_options_default(NULL));
    CHECK(bitnet_elementwise_options_default(&options) == BITNET_OK);
    layer = (bitnet_layer *)&layer;
    REFUSED(bitnet_elementwise_new(NULL, &options, &layer));
    CHECK(layer == NULL);
    REFUSED(bitnet_elementwise_new(backend, &options, NULL));
    options.alpha = INFINITY;
    REFUSED(bitnet_elementwise_new(backend, &options, &layer));
    options.alpha = 2;
    options.multiply = 1;
    REFUSED(bitnet_elementwise_new(backend, &options, &layer));
    options.multiply = 0;
    CHECK(bitnet_elementwise_new(backend, NULL, &layer) == BITNET_OK);
    forward(layer, &pairs, &other, &out_pairs);
    for (int i = 0; i < 8; i++)
        CHECK(y[i] == numbers[i] + row[i % 2]);
    options.beta = -1;
    options.relu = 1;
    CHECK(bitnet_elementwise_new(backend, &options, &layer) == BITNET_OK);
    bad = TENSOR(row, BITNET_F32, 2, 2, 1);
    refuses(layer, &x, &bad);
    forward(layer, &x, &up, &out);
    CHECK(y[0] == 0 && y[3] == 5 && y[7] == 2);
    CHECK(bitnet_elementwise_new(backend, &options, &layer) == BITNET_OK);
    forward(layer, &x, NULL, &out);
    CHECK(y[0] == 1 && y[3] == 7 && y[4] == 0);
    options = (bitnet_elementwise_options){.struct_bytes = sizeof options, .multiply = 1, .alpha = 1, .beta = 1};
    CHECK(bitnet_elementwise_new(backend, &options, &layer) == BITNET_OK);
    refuses(layer, &x, NULL);
    forward(layer, &x, &up, &out);
    CHECK(y[0] == 3 && y[4] == -2);
}

static void pooling(const bitnet_backend *backend)
{
    /* An image of two channels, contiguous and channels last. */
    float planes[8] = {1, 2, 3, 4, 5, 6, 7, 8}, last[8] = {1, 5, 2, 6, 3, 7, 4, 8}, y[8];
    bitnet_tensor x = TENSOR(planes, BITNET_F32, 4, 1, 2, 2, 2), out = TENSOR(y, BITNET_F32, 4, 1, 2, 1, 1), bad = x;
    bitnet_pool2d_options options;
    bitnet_layer *layer = (bitnet_layer *)&layer;
    REFUSED(bitnet_pool2d_options_default(NULL));
    CHECK(bitnet_pool2d_options_default(&options) == BITNET_OK);
    REFUSED(bitnet_pool2d_new(NULL, &options, &layer));
    CHECK(layer == NULL);
    REFUSED(bitnet_pool2d_new(backend, &options, NULL));
    options.stride[0] = 1;
    REFUSED(bitnet_pool2d_new(backend, &options, &layer));
    options.stride[0] = 0;
    CHECK(bitnet_pool2d_new(backend, NULL, &layer) == BITNET_OK);
    refuses(layer, &x, &x);
    bad = TENSOR(planes, BITNET_F32, 3, 2, 2, 2);
    refuses(layer, &bad, NULL);
    bad = x;
    bad.strides[3] = 3;
    refuses(layer, &bad, NULL);
    bad = TENSOR(planes, BITNET_F32, 4, 1, 2, 0, 2);
    refuses(layer, &bad, NULL);
    forward(layer, &x, NULL, &out);
    CHECK(y[0] == 4 && y[1] == 8);

    options.kernel[0] = 1;
    options.kernel[1] = 2;
    options.average = 1;
    bitnet_tensor rows = TENSOR(y, BITNET_F32, 4, 1, 2, 2, 1);
    CHECK(bitnet_pool2d_new(backend, &options, &layer) == BITNET_OK);
    forward(layer, &x, NULL, &rows);
    CHECK(y[0] == 1.5f && y[1] == 3.5f && y[2] == 5.5f && y[3] == 7.5f);
    bitnet_tensor images = {
        .struct_bytes = sizeof images, .data = last, .dims = 4, .sizes = {1, 2, 2, 2}, .strides = {8, 1, 4, 2},
    };
    bitnet_tensor columns = {
        .struct_bytes = sizeof columns, .data = y, .dims = 4, .sizes = {1, 2, 2, 1}, .strides = {4, 1, 2, 2},
    };
    CHECK(bitnet_pool2d_new(backend, &options, &layer) == BITNET_OK);
    forward(layer, &images, NULL, &columns);
    CHECK(y[0] == 1.5f && y[1] == 5.5f && y[2] == 3.5f && y[3] == 7.5f);
    /* Where more than half of a window would be padding, and an average with gaps. */
    options.padding[1] = 2;
    CHECK(bitnet_pool2d_new(backend, &options, &layer) == BITNET_OK);
    refuses(layer, &x, NULL);
    bitnet_layer_free(layer);
    options.padding[1] = 0;
    options.dilation[1] = 2;
    CHECK(bitnet_pool2d_new(backend, &options, &layer) == BITNET_OK);
    refuses(layer, &x, NULL);
    /* No images give none. */
    bitnet_layer_free(layer);
    options.dilation[1] = 1;
    CHECK(bitnet_pool2d_new(backend, &options, &layer) == BITNET_OK);
    x = TENSOR(NULL, BITNET_F32, 4, 0, 2, 2, 2);
    rows = TENSOR(NULL, BITNET_F32, 4, 0, 2, 2, 1);
    CHECK(bitnet_layer_forward(layer, &x, NULL, &rows, NULL, 0, NULL) == BITNET_OK);
    bitnet_layer_free(layer);
}

static void lookups(const bitnet_backend *backend)
{
    /* Two rows of weights on one of 127 and its half, which quantise without a remainder. */
    int8_t ternaries[6] = {1, 0, -1, 1, 1, 1}, codes[6] = {0, 1, 2, 3, 2, 2};
    float in[3] = {127, 64, -1}, y[2], one[2] = {0.5f, 1};
    bitnet_tensor weights = TENSOR(ternaries, BITNET_I8, 2, 2, 3), bias = TENSOR(one, BITNET_F32, 1, 2), bad = weights;
    bitnet_tensor scales = TENSOR(one, BITNET_F32, 2, 2, 1), x = TENSOR(in, BITNET_F32, 2, 1, 3), out = TENSOR(y, BITNET_F32, 2, 1, 2);
    bitnet_lut_options options;
    bitnet_layer *layer = (bitnet_layer *)&layer;
    REFUSED(bitnet_lut_options_default(NULL));
    CHECK(bitnet_lut_options_default(&options) == BITNET_OK);
    REFUSED(bitnet_lut_linear_new(NULL, &weights, NULL, NULL, NULL, &options, &layer));
    CHECK(layer == NULL);
    REFUSED(bitnet_lut_linear_new(backend, NULL, NULL, NULL, NULL, &options, &layer));
    REFUSED(bitnet_lut_linear_new(backend, &weights, NULL, NULL, NULL, &options, NULL));
    REFUSED(bitnet_lut_linear_new(backend, &weights, &scales, NULL, NULL, &options, &layer));
    REFUSED(bitnet_lut_linear_new(backend, &weights, NULL, &scales, NULL, &options, &layer));
    bad = TENSOR(in, BITNET_F32, 2, 1, 3);
    REFUSED(bitnet_lut_linear_new(backend, &bad, NULL, NULL, NULL, &options, &layer));
    bad = TENSOR(codes, BITNET_I8, 2, 2, 3);
    REFUSED(bitnet_lut_linear_new(backend, &bad, NULL, NULL, NULL, &options, &layer));
    bad = TENSOR(ternaries, BITNET_I8, 1, 6);
    REFUSED(bitnet_lut_linear_new(backend, &bad, NULL, NULL, NULL, &options, &layer));
    options.form = 3;
    REFUSED(bitnet_lut_linear_new(backend, &weights, NULL, NULL, NULL, &options, &layer));
    options.form = BITNET_LUT_TL1;
    options.activation = BITNET_GELU;
    REFUSED(bitnet_lut_linear_new(backend, &weights, NULL, NULL, NULL, &options, &layer));
    options.activation = BITNET_RELU;
    options.scale = 2;
    for (options.form = BITNET_LUT_TL1; options.form <= BITNET_LUT_TL2; options.form++) {
        CHECK(bitnet_lut_linear_new(backend, &weights, NULL, NULL, &bias, &options, &layer) == BITNET_OK);
        forward(layer, &x, NULL, &out);
        CHECK(y[0] == 256.5f && y[1] == 381);
    }
    options = (bitnet_lut_options){.struct_bytes = sizeof options, .form = BITNET_LUT_BITS, .bits = 2, .scale = 1};
    weights = TENSOR(codes, BITNET_I8, 2, 2, 3);
    REFUSED(bitnet_lut_linear_new(backend, &weights, NULL, NULL, NULL, &options, &layer));
    bad = TENSOR(one, BITNET_F32, 1, 2);
    REFUSED(bitnet_lut_linear_new(backend, &weights, &bad, NULL, NULL, &options, &layer));
    options.bits = 1;
    REFUSED(bitnet_lut_linear_new(backend, &weights, &scales, NULL, NULL, &options, &layer));
    options.bits = 5;
    REFUSED(bitnet_lut_linear_new(backend, &weights, &scales, NULL, NULL, &options, &layer));
    options.bits = 2;
    options.group = 2;
    REFUSED(bitnet_lut_linear_new(backend, &weights, &scales, NULL, NULL, &options, &layer));
    options.group = 0;
    codes[0] = -1;
    REFUSED(bitnet_lut_linear_new(backend, &weights, &scales, NULL, NULL, &options, &layer));
    codes[0] = 0;
    CHECK(bitnet_lut_linear_new(backend, &weights, &scales, NULL, NULL, &options, &layer) == BITNET_OK);
    bad = TENSOR(in, BITNET_BF16, 2, 1, 3);
    refuses(layer, &bad, NULL);
    forward(layer, &x, NULL, &out);
    /* -2, -1, 0 and 1, 0, 0; tables of int8 are off by half a step for each four columns. */
    CHECK(fabs(y[0] + 159) <= 2 && fabs(y[1] - 127) <= 2);
    bitnet_tensor zeros = TENSOR(one, BITNET_F32, 2, 2, 1);
    CHECK(bitnet_lut_linear_new(backend, &weights, &scales, &zeros, NULL, &options, &layer) == BITNET_OK);
    forward(layer, &x, NULL, &out);
    CHECK(fabs(y[0] + 159 + 95) <= 3 && fabs(y[1] - 127 + 190) <= 3);
}

int main(void)
{
    bitnet_backend *backend;
    CHECK(bitnet_backend_open("cpu", &backend) == BITNET_OK);
    softmax(backend);
    norms(backend);
    elements(backend);
    pooling(backend);
    lookups(backend);
    bitnet_backend_free(backend);
    printf("ok %s\n", bitnet_version());
    return 0;
}
