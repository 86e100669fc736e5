/* C interface of bitnet-gpu.
 *
 *     cargo build --release -p bitnet-capi          # target/release/libbitnet_c.so
 *     cc -Icapi/include program.c -Ltarget/release -lbitnet_c
 *
 * Functions give a bitnet_status; what went wrong is in bitnet_last_error(), by thread. Handles may be used from any
 * thread: calls on one handle wait for each other. No CUDA is needed to build or to start; a GPU is looked for when a
 * session or a backend is opened. Results are the same bits on every device.
 */
#ifndef BITNET_H
#define BITNET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum bitnet_status {
    BITNET_OK = 0,
    BITNET_FAILED = 1,   /* a file, a device or memory said no */
    BITNET_ARGUMENT = 2, /* an argument is wrong: nothing was done */
    BITNET_PANIC = 3,    /* a defect of the library: do not use the handle again */
    BITNET_FULL = 4      /* of bitnet_batch_add and _score: others have the room; step, and try again when one of them has ended */
} bitnet_status;

/* Such as "0.1.0". */
const char *bitnet_version(void);
/* Words of this thread's last failure, valid until its next one; "" when there was none. */
const char *bitnet_last_error(void);

/* ---- Text -------------------------------------------------------------------------------------------------- */

typedef struct bitnet_session bitnet_session;

/* How a step finds the next token, which is the same. */
typedef enum bitnet_head {
    BITNET_HEAD_AUTO = 0,   /* int8 on a GPU that has room for the copy, else stored */
    BITNET_HEAD_STORED = 1, /* every logit from the model's own table */
    BITNET_HEAD_INT8 = 2    /* by way of an int8 copy: faster, with more memory */
} bitnet_head;

/* What the cache keeps of keys and values. */
typedef enum bitnet_kv {
    BITNET_KV_BF16 = 0,
    BITNET_KV_F32 = 1,
    BITNET_KV_INT8 = 2 /* MXINT8, of a batch: half the memory of BF16, and rounded to some 7 bits */
} bitnet_kv;

/* How ternary weights lie on the device; the tokens are the same. */
typedef enum bitnet_weights {
    BITNET_WEIGHTS_AUTO = 0, /* 2 bits, unless 1.6 were measured to be faster */
    BITNET_WEIGHTS_2BIT = 1,
    BITNET_WEIGHTS_1_6BIT = 2 /* a fifth less memory */
} bitnet_weights;

/* Fill it with bitnet_options_default, then change what you want. */
typedef struct bitnet_options {
    size_t struct_bytes;
    const char *device;    /* "auto", "cpu", "cuda" or "cuda:N"; of a batch "cuda:N,M" and "cuda:all" too; NULL is "auto" */
    size_t context;        /* positions, prompt and text together; 0: the model's, at most 4096 */
    size_t threads;        /* of the CPU; 0: all cores */
    size_t pool_cap_bytes; /* most device memory; 0: no cap */
    int32_t head;          /* a bitnet_head */
    int32_t attention;     /* a bitnet_math: BITNET_TENSOR_CORE is faster, with a stated error instead of the same bits */
    int32_t kv;            /* a bitnet_kv */
    int32_t weights;       /* a bitnet_weights */
    size_t max_batch;      /* of a batch: most requests at once on each device, up to 1024; 0: 32 */
    size_t pages;          /* of a batch: pages of 64 positions that its requests share; 0: as many as max_batch contexts take */
    size_t prompt_share;   /* of a batch: tokens of prompts that run with a step; 0: 768 */
    size_t lookup;         /* most tokens of a text that are guessed at once, by what stood behind its last ones before; 0: none. The tokens are the same */
    int32_t no_prefix_cache; /* of a batch: not 0: compute every prompt from its beginning, also where an earlier text began alike */
} bitnet_options;

/* What a text has to be. */
typedef enum bitnet_grammar {
    BITNET_NO_GRAMMAR = 0,
    BITNET_JSON_SCHEMA = 1, /* JSON of this schema, which is JSON itself */
    BITNET_REGEX = 2,       /* what this regular expression matches as a whole */
    BITNET_LARK = 3         /* what this grammar says, in the form of Lark */
} bitnet_grammar;

/* Most tokens that are listed at each place of a text. */
#define BITNET_MAX_LOGPROBS 20

/* Fill it with bitnet_sampling_default, then change what you want. */
typedef struct bitnet_sampling {
    size_t struct_bytes;
    uint64_t seed; /* the same seed gives the same text on every device */
    size_t max_tokens;
    float temperature; /* 0: always the most likely token */
    float top_p;
    float min_p;
    float repetition_penalty;
    uint32_t top_k;     /* 0: all */
    int32_t ignore_eos; /* not 0: go on after the model's end token */
    const char *stop;   /* ends the text and is no part of it; NULL: none */
    const char *grammar;  /* of grammar_kind; NULL: none */
    int32_t grammar_kind; /* bitnet_grammar */
    float presence_penalty;   /* -2 to 2: taken off the logits of tokens that the text has given, the prompt not counted */
    float frequency_penalty;  /* -2 to 2: taken off for each time that it has given them */
    const uint32_t *bias_ids; /* [biases]: tokens of the model, each at most once; NULL: none */
    const float *bias;        /* [biases], -100 to 100: added to their logits. Both lists are copied by the call that takes them */
    size_t biases;            /* up to 1024 */
    int32_t logprobs;         /* tells the log probability of each token of the text, and so many of the most likely ones in its place, up to
                                 BITNET_MAX_LOGPROBS; -1: nothing is told */
} bitnet_sampling;

/* What is told of a token: probabilities of the model, before any bias, penalty, temperature, filter or grammar. All of it is in
 * here. Set struct_bytes to sizeof(bitnet_logprobs). */
typedef struct bitnet_logprobs {
    size_t struct_bytes;
    float logprob; /* the natural logarithm of its probability */
    uint32_t rank; /* 1 and the number of tokens that are more likely */
    uint32_t top;  /* how many of the most likely tokens follow, as was asked for; the most likely one first */
    uint32_t top_ids[BITNET_MAX_LOGPROBS];
    float top_logprobs[BITNET_MAX_LOGPROBS];
} bitnet_logprobs;

typedef enum bitnet_finish {
    BITNET_STOP_TOKEN = 0,
    BITNET_STOP_STRING = 1,
    BITNET_MAX_TOKENS = 2,
    BITNET_CONTEXT_FULL = 3,
    BITNET_CANCELLED = 4,    /* by the callback */
    BITNET_GRAMMAR_DONE = 5, /* nothing may follow */
    BITNET_GRAMMAR_LIMIT = 6 /* it allows nothing that can follow, or takes too much work */
} bitnet_finish;

/* Set struct_bytes to sizeof(bitnet_generated). */
typedef struct bitnet_generated {
    size_t struct_bytes;
    size_t prompt_tokens;
    size_t cached_tokens; /* of the prompt: their keys and values were there */
    size_t generated_tokens;
    size_t drafted_tokens;  /* guessed, with lookup */
    size_t accepted_tokens; /* of those, the next tokens of the text */
    double prefill_seconds;
    double decode_seconds;
    int32_t finish; /* bitnet_finish */
} bitnet_generated;

/* Called for each token with the text that became complete: `bytes` bytes of UTF-8, no zero behind them, often none.
 * Another value than 0 ends the text. It must not use the session. */
typedef int (*bitnet_on_text)(void *user, uint32_t token, const char *text, size_t bytes);

bitnet_status bitnet_options_default(bitnet_options *out);
bitnet_status bitnet_sampling_default(bitnet_sampling *out);

/* `model`: a folder, a .safetensors or a .gguf file. `options` may be NULL. */
bitnet_status bitnet_session_open(const char *model, const bitnet_options *options, bitnet_session **out);
void bitnet_session_free(bitnet_session *session);
/* A line about the device; cut where `bytes` are too few. */
bitnet_status bitnet_session_device(const bitnet_session *session, char *out, size_t bytes);

/* Continues `prompt`; with `chat` not 0 it is one user turn of the model's chat template, behind `system` if that is
 * not NULL. `sampling`, `on_text` and `out` may be NULL. */
bitnet_status bitnet_session_generate(bitnet_session *session, const char *prompt, size_t prompt_bytes, int chat,
                                      const char *system, const bitnet_sampling *sampling, bitnet_on_text on_text,
                                      void *user, bitnet_generated *out);
/* What was told of token `index`, from 0 to generated_tokens - 1, of the session's last text, if its `sampling` asked for it. It
 * stays until the next bitnet_session_generate. */
bitnet_status bitnet_session_logprobs(const bitnet_session *session, size_t index, bitnet_logprobs *out);

/* The ids of `text`, UTF-8 of `bytes` bytes; with `bos` not 0 as those of a prompt: behind the model's BOS token, if it wants one. *count is how
 * many there are, of which the first `room` go to `ids`; NULL and 0 to count them. */
bitnet_status bitnet_session_encode(const bitnet_session *session, const char *text, size_t bytes, int bos, uint32_t *ids,
                                    size_t room, size_t *count);

/* ---- Several texts at once ------------------------------------------------------------------------------------ */

/* A model and requests that come and go between steps. Each gives the text that it gives alone. */
typedef struct bitnet_batch bitnet_batch;

/* What a step gave a request. */
typedef struct bitnet_output {
    size_t struct_bytes;
    uint64_t request;
    const char *text; /* what became complete: UTF-8, no zero behind it, often nothing */
    size_t text_bytes;
    uint32_t token;
    int32_t finished; /* not 0: this was its last token, and the request is gone */
    bitnet_generated generated; /* of a request that has finished */
    const bitnet_logprobs *logprobs; /* of the token; NULL unless the request asked for it */
} bitnet_output;

/* `output` is valid during the call, which may use the batch. */
typedef void (*bitnet_on_output)(void *user, const bitnet_output *output);

/* As bitnet_session_open, for several devices too: each has the whole model. */
bitnet_status bitnet_batch_open(const char *model, const bitnet_options *options, bitnet_batch **out);
void bitnet_batch_free(bitnet_batch *batch);
/* A line about the devices; cut where `bytes` are too few. */
bitnet_status bitnet_batch_device(const bitnet_batch *batch, char *out, size_t bytes);

/* Adds a request, whose prompt runs in the steps that follow; the rest as bitnet_session_generate. *request is its number.
 * BITNET_FULL: there is no room for it now. */
bitnet_status bitnet_batch_add(bitnet_batch *batch, const char *prompt, size_t prompt_bytes, int chat, const char *system,
                               const bitnet_sampling *sampling, uint64_t *request);
/* Takes a request out before its end; one that is gone stays gone. */
bitnet_status bitnet_batch_remove(bitnet_batch *batch, uint64_t request);
/* Requests under way. */
bitnet_status bitnet_batch_len(const bitnet_batch *batch, size_t *requests);
/* Gives requests their next tokens, of several devices those of the devices that have one; a prompt that has not run to its end, or
 * a grammar that is still being followed, has none. `on_output` may be NULL. After a failure all requests are gone. */
bitnet_status bitnet_batch_step(bitnet_batch *batch, bitnet_on_output on_output, void *user);

/* As bitnet_session_encode. */
bitnet_status bitnet_batch_encode(const bitnet_batch *batch, const char *text, size_t bytes, int bos, uint32_t *ids, size_t room,
                                  size_t *count);
/* How well the model knows `texts` texts: of each token but the first of a text the natural logarithm of its probability behind those
 * before it, and its rank (1: the most likely one). `lengths` [texts] has the ids of each text, 1 to the context's positions; `ids` has them one
 * text behind the other. `logprobs` and, unless it is NULL, `ranks` get lengths[i] - 1 values of each text, one text behind the other. All are
 * the caller's, and nothing is kept. Nothing is written unless this is BITNET_OK. BITNET_FULL: requests are under way. */
bitnet_status bitnet_batch_score(bitnet_batch *batch, const uint32_t *ids, const size_t *lengths, size_t texts, float *logprobs,
                                 uint32_t *ranks);

/* ---- Ternary linear layers ---------------------------------------------------------------------------------- */

typedef struct bitnet_backend bitnet_backend;
typedef struct bitnet_linear bitnet_linear;

typedef enum bitnet_dtype {
    BITNET_F32 = 0,
    BITNET_F16 = 1,
    BITNET_BF16 = 2,
    BITNET_I8 = 3,
    BITNET_I32 = 4
} bitnet_dtype;

/* `device` as in bitnet_options. */
bitnet_status bitnet_backend_open(const char *device, bitnet_backend **out);
/* Layers keep what they need of it. */
void bitnet_backend_free(bitnet_backend *backend);
bitnet_status bitnet_backend_describe(const bitnet_backend *backend, char *out, size_t bytes);

/* `ternaries`: n rows of k values of -1, 0 and 1, in host memory, row by row. They are packed, at 2 bits each, and
 * copied to the device. A weight is its ternary times `scale`. */
bitnet_status bitnet_linear_new(const bitnet_backend *backend, const int8_t *ternaries, size_t n, size_t k,
                                float scale, bitnet_linear **out);
/* Not while a stream that was used with the layer is being captured. */
void bitnet_linear_free(bitnet_linear *linear);

/* Bytes of the workspace for m rows: 0 on the CPU. */
bitnet_status bitnet_linear_workspace(const bitnet_linear *linear, size_t m, size_t *bytes);

/* y[m, n] = x[m, k] . w^T, x of `dtype` (a bitnet_dtype: F32, F16 or BF16), y of f32; each row of x is quantised to int8 by
 * its largest value.
 *
 * CPU: x and y are host memory; workspace and stream are not looked at. GPU: x, y and workspace are memory of the
 * backend's device that starts at multiples of 256 bytes, `stream` is a CUstream of its primary context (the one of
 * the CUDA runtime and of PyTorch) or NULL for the default stream, and lives as long as the layer. The product is
 * queued there; it may be captured into a graph after a first call outside of a capture. */
bitnet_status bitnet_linear_forward(const bitnet_linear *linear, const void *x, int32_t dtype, size_t m, float *y,
                                    void *workspace, size_t workspace_bytes, void *stream);

/* ---- Tensors of the caller's --------------------------------------------------------------------------------- */

/* Set struct_bytes to sizeof(bitnet_tensor). Sizes and strides (in elements) are in PyTorch's order of the dimensions,
 * whatever lies nearest in memory: images are [n, c, h, w], and those of a channels_last tensor have c's stride 1. */
typedef struct bitnet_tensor {
    size_t struct_bytes;
    void *data;
    int32_t dtype; /* bitnet_dtype */
    int32_t dims;  /* 1 to 4; what stands behind them in sizes and strides is not looked at */
    int64_t sizes[4];
    int64_t strides[4];
} bitnet_tensor;

typedef enum bitnet_math {
    BITNET_EXACT = 0,      /* the same bits on every device */
    BITNET_TENSOR_CORE = 1 /* sums in an order of the hardware's, within a stated bound; exact where it has no such way */
} bitnet_math;

/* ---- Layers --------------------------------------------------------------------------------------------------- */

/* What is done to tensors, with its weights, if it has any: packed and copied to the device of a backend when the layer is made,
 * from tensors in host memory that may go then. */
typedef struct bitnet_layer bitnet_layer;

/* Not while a stream that was used with the layer is being captured. */
void bitnet_layer_free(bitnet_layer *layer);

/* What comes out for `x`: dtype, sizes and strides of `y`, whose data stays; and the bytes of the workspace (0 on the CPU). `x`,
 * and `other` unless it is NULL, may be without data. A plan holds for every x and other of these dtypes, sizes and
 * strides. It loads the kernels: after it a forward can be captured. `workspace_bytes` may be NULL. */
bitnet_status bitnet_layer_plan(const bitnet_layer *layer, const bitnet_tensor *x, const bitnet_tensor *other,
                                bitnet_tensor *y, size_t *workspace_bytes);

/* y = layer(x). `other` is what the layer takes beside x, or NULL: of convolutions and linear layers a residual of the shape and
 * dtype of y, which is added in front of the activation; of others what the function that makes them says. No tensors overlap.
 *
 * CPU: host memory; workspace and stream are not looked at. GPU: tensors and workspace are memory of the backend's device that
 * starts at multiples of 256 bytes, `stream` is a CUstream of its primary context (the one of the CUDA runtime and of PyTorch) or
 * NULL for the default stream, and lives as long as the layer. The forward is queued there; nothing is allocated. */
bitnet_status bitnet_layer_forward(const bitnet_layer *layer, const bitnet_tensor *x, const bitnet_tensor *other,
                                   const bitnet_tensor *y, void *workspace, size_t workspace_bytes, void *stream);

typedef enum bitnet_pad_mode { BITNET_ZEROS = 0, BITNET_REFLECT = 1, BITNET_REPLICATE = 2 } bitnet_pad_mode;

/* Behind the sums of convolutions and linear layers: up to BITNET_SILU. */
typedef enum bitnet_activation {
    BITNET_NONE = 0,
    BITNET_RELU = 1,
    BITNET_RELU2 = 2, /* max(x, 0)^2 */
    BITNET_SILU = 3,
    BITNET_GELU = 4,     /* with the normal distribution */
    BITNET_GELU_TANH = 5 /* approximated by tanh */
} bitnet_activation;

/* Fill it with bitnet_conv2d_options_default, then change what you want. */
typedef struct bitnet_conv2d_options {
    size_t struct_bytes;
    size_t stride[2];   /* rows, columns */
    size_t padding[4];  /* above, below, left, right */
    size_t dilation[2];
    size_t groups;
    int32_t same;       /* not 0: as much padding as gives ceil(size / stride) outputs, the smaller half before */
    int32_t pad_mode;   /* bitnet_pad_mode */
    int32_t activation; /* bitnet_activation, the last step */
    int32_t math;       /* bitnet_math; tensor cores for F16 and BF16 */
    float scale;        /* of ternary weights */
} bitnet_conv2d_options;

bitnet_status bitnet_conv2d_options_default(bitnet_conv2d_options *out);

/* y = activation(conv(x, w) + bias + residual), x and y [n, c, h, w], contiguous or channels last. Weights [k, c / groups, r, s] of
 * F32, F16 or BF16 take images of their dtype. Weights of I8 are -1, 0 and 1, times `scale`: each image, of F32, F16 or BF16, is
 * quantised to int8 by its largest value, and products are exact. y has the dtype of x. `bias` is [k] of F32 or NULL; `options`
 * may be NULL. */
bitnet_status bitnet_conv2d_new(const bitnet_backend *backend, const bitnet_tensor *weights, const bitnet_tensor *bias,
                                const bitnet_conv2d_options *options, bitnet_layer **out);

typedef enum bitnet_sparse_format {
    BITNET_CSR = 0,           /* for matrices that are used once, or nearly empty */
    BITNET_BITMAP = 1,        /* the fast one */
    BITNET_TERNARY_BITMAP = 2 /* weights of I8, -1, 0 and 1, times `scale`; rows of x are quantised to int8 */
} bitnet_sparse_format;

/* Fill it with bitnet_sparse_options_default, then change what you want. */
typedef struct bitnet_sparse_options {
    size_t struct_bytes;
    int32_t format;     /* bitnet_sparse_format; the bitmap */
    int32_t math;       /* bitnet_math; tensor cores for the bitmap, weights and x of BF16 */
    int32_t activation; /* bitnet_activation, the last step */
    float scale;        /* of ternary weights */
} bitnet_sparse_options;

bitnet_status bitnet_sparse_options_default(bitnet_sparse_options *out);

/* y = activation(x . w^T + bias + residual) over the weights other than +0, sums in F32: x and y [..., k] and [..., n], contiguous,
 * weights [n, k] of F32, F16 or BF16 (or ternary), bias [n] of F32 or NULL. x may have any of the three dtypes, y has that of x.
 * `options` may be NULL. */
bitnet_status bitnet_sparse_linear_new(const bitnet_backend *backend, const bitnet_tensor *weights, const bitnet_tensor *bias,
                                       const bitnet_sparse_options *options, bitnet_layer **out);

/* The same of a convolution, as bitnet_conv2d_new, but x and y channels last, one group, zeros around the image and as many on both
 * sides; `options` may be NULL. */
bitnet_status bitnet_sparse_conv2d_new(const bitnet_backend *backend, const bitnet_tensor *weights, const bitnet_tensor *bias,
                                       const bitnet_conv2d_options *options, bitnet_layer **out);

/* Sets the round(sparsity * len) smallest of contiguous weights in host memory to +0; `pruned` may be NULL. */
bitnet_status bitnet_prune(const bitnet_tensor *weights, double sparsity, size_t *pruned);

/* Whether a bitmap [n, k] of such a share of zeros is expected to beat a dense BF16 product with m rows on a GPU: *out is 1 or 0. */
bitnet_status bitnet_sparse_pays_off(size_t n, size_t k, size_t m, double sparsity, int32_t math, int32_t *out);

/* ---- Lookup ---------------------------------------------------------------------------------------------------- */

typedef enum bitnet_lut_form {
    BITNET_LUT_TL1 = 0, /* ternary weights in pairs, at 2 bits a weight: the bits of bitnet_linear_forward */
    BITNET_LUT_TL2 = 1, /* in triples, at 1.67 bits: the same bits */
    BITNET_LUT_BITS = 2 /* weights of 1 to 4 bits over int8 tables: lossy, as T-MAC publishes it */
} bitnet_lut_form;

/* Fill it with bitnet_lut_options_default, then change what you want. */
typedef struct bitnet_lut_options {
    size_t struct_bytes;
    int32_t form;       /* bitnet_lut_form */
    int32_t activation; /* bitnet_activation, the last step */
    size_t bits;        /* of BITNET_LUT_BITS: 1 to 4 */
    size_t group;       /* columns that share a scale, a multiple of 32; 0: the whole row */
    float scale;        /* of ternary weights */
} bitnet_lut_options;

bitnet_status bitnet_lut_options_default(bitnet_lut_options *out);

/* y = activation(x . w^T + bias + residual) by T-MAC's table lookup, x and y [..., k] and [..., n], contiguous; y has the dtype of
 * x. Weights [n, k] of I8. TL1 and TL2: -1, 0 and 1, times `scale`; rows of x, of F32, F16 or BF16, are quantised to int8; scales
 * and zeros are NULL. BITS: codes u from 0 to 2^bits - 1, scales [n, ceil(k / group)] of F32 and zeros like it or NULL: a weight is
 * (u - 2^(bits - 1)) scale - zero; x is of F32. `bias` is [n] of F32 or NULL, `options` may be NULL. On a GPU lookup is slower
 * than bitnet_linear_forward. */
bitnet_status bitnet_lut_linear_new(const bitnet_backend *backend, const bitnet_tensor *weights, const bitnet_tensor *scales,
                                    const bitnet_tensor *zeros, const bitnet_tensor *bias, const bitnet_lut_options *options,
                                    bitnet_layer **out);

/* ---- Rows, elements, images ------------------------------------------------------------------------------------ */

/* Tensors of F32, F16 or BF16; y has the dtype of x. A row is the last dimension. Sums and functions are made in F32 and rounded
 * once; all are exact in the sense of BITNET_EXACT. */

/* Fill it with bitnet_softmax_options_default, then change what you want. */
typedef struct bitnet_softmax_options {
    size_t struct_bytes;
    float scale;    /* factor of the scores */
    int32_t log;    /* not 0: the logarithm of the result */
    int32_t causal; /* not 0: x is [..., queries, keys], and a query sees the keys up to its own; the last query sees all */
} bitnet_softmax_options;

bitnet_status bitnet_softmax_options_default(bitnet_softmax_options *out);

/* y = softmax(x * scale + other), each row by itself, x contiguous. `other`, the mask, has x's dtype and its last sizes, ones in
 * front of them, and serves all; it goes without `causal`. A row of minus infinity gives zeros. `options` may be NULL. */
bitnet_status bitnet_softmax_new(const bitnet_backend *backend, const bitnet_softmax_options *options, bitnet_layer **out);

/* y = x / sqrt(mean(x^2) + eps) * weight, x contiguous [..., k], weight [k] of its dtype. `other`, of x's shape, is a residual: it
 * becomes its sum with x, in place, and y is the norm of that. */
bitnet_status bitnet_rmsnorm_new(const bitnet_backend *backend, const bitnet_tensor *weight, float eps, bitnet_layer **out);

/* y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, the rest as bitnet_rmsnorm_new. `weight` and `bias` may be NULL; without
 * both x may have any length and any of the three dtypes. */
bitnet_status bitnet_layernorm_new(const bitnet_backend *backend, const bitnet_tensor *weight, const bitnet_tensor *bias,
                                   float eps, bitnet_layer **out);

/* y = activation(x), or activation(x) * other with a factor of x's shape: a gate. x is contiguous. With `fused` not 0 a row of x
 * holds the gate, then as long a factor, as a fused projection leaves them. `activation` is any but BITNET_NONE. */
bitnet_status bitnet_activation_new(const bitnet_backend *backend, int32_t activation, int32_t fused, bitnet_layer **out);

/* Fill it with bitnet_elementwise_options_default, then change what you want. */
typedef struct bitnet_elementwise_options {
    size_t struct_bytes;
    int32_t multiply; /* not 0: y = x * other */
    float alpha;      /* else y = alpha x + beta other; without other y = alpha x + beta */
    float beta;
    int32_t relu;     /* not 0: max(y, 0) behind it */
} bitnet_elementwise_options;

bitnet_status bitnet_elementwise_options_default(bitnet_elementwise_options *out);

/* x contiguous; `other` has x's dtype and its last sizes, ones in front of them, and serves all. `options` may be NULL: x + other. */
bitnet_status bitnet_elementwise_new(const bitnet_backend *backend, const bitnet_elementwise_options *options,
                                     bitnet_layer **out);

/* Fill it with bitnet_pool2d_options_default, then change what you want. */
typedef struct bitnet_pool2d_options {
    size_t struct_bytes;
    size_t kernel[2];  /* rows, columns; both 0: one window, the whole image */
    size_t stride[2];  /* both 0: as the kernel */
    size_t padding[2]; /* on both sides, at most half a window */
    size_t dilation[2];
    int32_t average;   /* not 0: the average instead of the maximum; dilation 1 */
    int32_t count_include_pad; /* not 0: taps in the padding count in an average, as zeros */
    int32_t ceil_mode; /* not 0: a window that is only partly inside makes an output at the end */
} bitnet_pool2d_options;

bitnet_status bitnet_pool2d_options_default(bitnet_pool2d_options *out);

/* Pooling by PyTorch's rules, x and y [n, c, h, w], contiguous or channels last. It takes nothing beside x. `options` may be NULL. */
bitnet_status bitnet_pool2d_new(const bitnet_backend *backend, const bitnet_pool2d_options *options, bitnet_layer **out);

/* ---- Products ------------------------------------------------------------------------------------------------- */

/* Set struct_bytes to sizeof(bitnet_bmm_options), alpha to 1. */
typedef struct bitnet_bmm_options {
    size_t struct_bytes;
    float alpha;
    float beta;   /* 0: what c held is not read */
    int32_t math; /* bitnet_math */
} bitnet_bmm_options;

/* Bytes of the workspace of such a product (0 on the CPU). Of the tensors' data only the alignment counts. Loads the kernels. */
bitnet_status bitnet_bmm_workspace(const bitnet_backend *backend, const bitnet_tensor *a, const bitnet_tensor *b,
                                   const bitnet_tensor *c, const bitnet_bmm_options *options, size_t *bytes);

/* c = alpha (a x b) + beta c: [m, k], [k, n] and [m, n], or with a batch in front of each. F32, F16 and BF16 give their dtype, I8
 * gives I32. Rows or columns lie side by side, in c rows; they may lie apart, and a batch of a or b may have stride 0. Data is
 * aligned to its dtype. `options` may be NULL; workspace and stream as in bitnet_layer_forward, the stream as long as the backend. */
bitnet_status bitnet_bmm(const bitnet_backend *backend, const bitnet_tensor *a, const bitnet_tensor *b, const bitnet_tensor *c,
                         const bitnet_bmm_options *options, void *workspace, size_t workspace_bytes, void *stream);

#ifdef __cplusplus
}
#endif

#endif
