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
    BITNET_PANIC = 3     /* a defect of the library: do not use the handle again */
} bitnet_status;

/* Such as "0.1.0". */
const char *bitnet_version(void);
/* Words of this thread's last failure, valid until its next one; "" when there was none. */
const char *bitnet_last_error(void);

/* ---- Text -------------------------------------------------------------------------------------------------- */

typedef struct bitnet_session bitnet_session;

/* Fill it with bitnet_options_default, then change what you want. */
typedef struct bitnet_options {
    size_t struct_bytes;
    const char *device;    /* "auto", "cpu", "cuda" or "cuda:N"; NULL is "auto" */
    size_t context;        /* positions, prompt and text together; 0: the model's, at most 4096 */
    size_t threads;        /* of the CPU; 0: all cores */
    size_t pool_cap_bytes; /* most device memory; 0: no cap */
    int32_t int8_head;     /* not 0: the same tokens faster, with more memory */
} bitnet_options;

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
} bitnet_sampling;

typedef enum bitnet_finish {
    BITNET_STOP_TOKEN = 0,
    BITNET_STOP_STRING = 1,
    BITNET_MAX_TOKENS = 2,
    BITNET_CONTEXT_FULL = 3,
    BITNET_CANCELLED = 4 /* by the callback */
} bitnet_finish;

/* Set struct_bytes to sizeof(bitnet_generated). */
typedef struct bitnet_generated {
    size_t struct_bytes;
    size_t prompt_tokens;
    size_t generated_tokens;
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

/* ---- Ternary linear layers ---------------------------------------------------------------------------------- */

typedef struct bitnet_backend bitnet_backend;
typedef struct bitnet_linear bitnet_linear;

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

/* y[m, n] = x[m, k] . w^T in f32; each row of x is quantised to int8 by its largest value.
 *
 * CPU: x and y are host memory; workspace and stream are not looked at. GPU: x, y and workspace are memory of the
 * backend's device that starts at multiples of 256 bytes, `stream` is a CUstream of its primary context (the one of
 * the CUDA runtime and of PyTorch) or NULL for the default stream, and lives as long as the layer. The product is
 * queued there; it may be captured into a graph after a first call outside of a capture. */
bitnet_status bitnet_linear_forward(const bitnet_linear *linear, const float *x, size_t m, float *y, void *workspace,
                                    size_t workspace_bytes, void *stream);
/* The same of rows of 16 bits, which are not converted first: `dtype` of x is 0 for f32, 1 for f16, 2 for bf16. */
bitnet_status bitnet_linear_forward_of(const bitnet_linear *linear, const void *x, int32_t dtype, size_t m, float *y,
                                       void *workspace, size_t workspace_bytes, void *stream);

#ifdef __cplusplus
}
#endif

#endif
