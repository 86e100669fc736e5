/* Every function with what it must refuse, and a layer with known products. Prints "ok" at the end. */
#include <math.h>
#include <string.h>

#include "check.h"

static int stop(void *user, uint32_t token, const char *text, size_t bytes)
{
    (void)token;
    (void)text;
    (void)bytes;
    return ++*(int *)user == 3;
}

static void sessions(const char *model)
{
    bitnet_session *session = (bitnet_session *)&session;
    CHECK(bitnet_session_open(NULL, NULL, &session) == BITNET_ARGUMENT && session == NULL);
    CHECK(strcmp(bitnet_last_error(), "model is NULL") == 0);
    CHECK(bitnet_session_open(model, NULL, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_session_open("no such model", NULL, &session) == BITNET_FAILED);
    CHECK(strstr(bitnet_last_error(), "no such model") != NULL);
    CHECK(bitnet_session_open("\xff", NULL, &session) == BITNET_ARGUMENT);
    bitnet_options options = {0};
    CHECK(bitnet_session_open(model, &options, &session) == BITNET_ARGUMENT);
    CHECK(bitnet_options_default(NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_options_default(&options) == BITNET_OK);
    options.device = "gpu";
    CHECK(bitnet_session_open(model, &options, &session) == BITNET_ARGUMENT);
    options.device = "cpu";
    options.context = 1u << 30;
    CHECK(bitnet_session_open(model, &options, &session) == BITNET_FAILED);
    options.context = 64;
    CHECK(bitnet_session_open(model, &options, &session) == BITNET_OK && session != NULL);

    char word[4];
    CHECK(bitnet_session_device(session, NULL, 9) == BITNET_ARGUMENT);
    CHECK(bitnet_session_device(session, word, 0) == BITNET_ARGUMENT);
    CHECK(bitnet_session_device(session, word, sizeof word) == BITNET_OK && strcmp(word, "CPU") == 0);
    CHECK(bitnet_session_device(NULL, word, sizeof word) == BITNET_ARGUMENT);

    bitnet_sampling sampling;
    CHECK(bitnet_sampling_default(NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_sampling_default(&sampling) == BITNET_OK);
    bitnet_generated made = {.struct_bytes = sizeof made};
    int seen = 0;
    CHECK(bitnet_session_generate(NULL, "a", 1, 0, NULL, NULL, NULL, NULL, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_session_generate(session, NULL, 1, 0, NULL, NULL, NULL, NULL, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_session_generate(session, "\xff", 1, 0, NULL, NULL, NULL, NULL, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_session_generate(session, "a", 1, 0, "brief", NULL, NULL, NULL, NULL) == BITNET_ARGUMENT);
    /* The demo model has no chat template. */
    CHECK(bitnet_session_generate(session, "a", 1, 1, "brief", NULL, NULL, NULL, NULL) == BITNET_FAILED);
    sampling.temperature = NAN;
    CHECK(bitnet_session_generate(session, "a", 1, 0, NULL, &sampling, NULL, NULL, NULL) == BITNET_ARGUMENT);
    sampling.temperature = 0;
    sampling.grammar_kind = BITNET_REGEX;
    CHECK(bitnet_session_generate(session, "a", 1, 0, NULL, &sampling, NULL, NULL, NULL) == BITNET_ARGUMENT);
    sampling.grammar = "(";
    CHECK(bitnet_session_generate(session, "a", 1, 0, NULL, &sampling, NULL, NULL, NULL) == BITNET_FAILED);
    sampling.grammar_kind = 4;
    CHECK(bitnet_session_generate(session, "a", 1, 0, NULL, &sampling, NULL, NULL, NULL) == BITNET_ARGUMENT);
    sampling.grammar_kind = BITNET_NO_GRAMMAR;
    CHECK(bitnet_session_generate(session, "a", 1, 0, NULL, &sampling, NULL, NULL, NULL) == BITNET_ARGUMENT);
    sampling.grammar_kind = BITNET_JSON_SCHEMA;
    CHECK(bitnet_session_generate(session, "a", 1, 0, NULL, &sampling, NULL, NULL, NULL) == BITNET_ARGUMENT);
    sampling.grammar = "{\"const\": 17}";
    CHECK(bitnet_session_generate(session, "a", 1, 0, NULL, &sampling, NULL, NULL, &made) == BITNET_OK);
    CHECK(made.finish == BITNET_GRAMMAR_DONE || made.finish == BITNET_STOP_TOKEN);
    sampling.grammar = NULL;
    sampling.grammar_kind = BITNET_NO_GRAMMAR;
    made.struct_bytes = 1;
    CHECK(bitnet_session_generate(session, "a", 1, 0, NULL, &sampling, NULL, NULL, &made) == BITNET_ARGUMENT);
    made.struct_bytes = sizeof made;
    CHECK(bitnet_session_generate(session, "a", 1, 0, NULL, &sampling, stop, &seen, &made) == BITNET_OK);
    CHECK(seen >= 3 && made.finish == BITNET_CANCELLED && made.generated_tokens == 3);
    CHECK(bitnet_session_generate(session, "a", 1, 0, NULL, &sampling, NULL, NULL, &made) == BITNET_OK);
    CHECK(made.finish == BITNET_CONTEXT_FULL || made.finish == BITNET_STOP_TOKEN);
    char *long_prompt = malloc(4000);
    memset(long_prompt, '7', 4000);
    CHECK(bitnet_session_generate(session, long_prompt, 4000, 0, NULL, NULL, NULL, NULL, NULL) == BITNET_FAILED);
    free(long_prompt);
    bitnet_session_free(session);
    bitnet_session_free(NULL);
}

static void layers(void)
{
    bitnet_backend *backend;
    bitnet_linear *linear = (bitnet_linear *)&linear;
    CHECK(bitnet_backend_open("cpu", NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_backend_open("tpu", &backend) == BITNET_ARGUMENT && backend == NULL);
    CHECK(bitnet_backend_open("cuda:4000000000", &backend) != BITNET_OK && backend == NULL);
    CHECK(bitnet_backend_open("cpu", &backend) == BITNET_OK);

    enum { N = 3, K = 5, M = 2 };
    int8_t t[N * K] = {1, 1, 1, 1, 1, 0, 0, 0, 0, 0, -1, 0, 1, 0, -1};
    CHECK(bitnet_linear_new(NULL, t, N, K, 1, &linear) == BITNET_ARGUMENT && linear == NULL);
    CHECK(bitnet_linear_new(backend, NULL, N, K, 1, &linear) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_new(backend, t, N, K, 1, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_new(backend, t, 0, K, 1, &linear) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_new(backend, t, N, 0, 1, &linear) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_new(backend, t, SIZE_MAX, SIZE_MAX, 1, &linear) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_new(backend, t, N, K, NAN, &linear) == BITNET_ARGUMENT);
    t[4] = 2;
    CHECK(bitnet_linear_new(backend, t, N, K, 1, &linear) == BITNET_ARGUMENT && linear == NULL);
    t[4] = 1;
    CHECK(bitnet_linear_new(backend, t, N, K, 0.5f, &linear) == BITNET_OK);
    bitnet_backend_free(backend); /* the layer keeps what it needs */
    bitnet_backend_free(NULL);

    size_t bytes = 77;
    CHECK(bitnet_linear_workspace(linear, M, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_workspace(NULL, M, &bytes) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_workspace(linear, SIZE_MAX, &bytes) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_workspace(linear, M, &bytes) == BITNET_OK && bytes == 0);

    /* 127 is quantised to itself: these products are exact. */
    float x[M * K] = {127, 1, 2, 3, 4, -127, 5, 0, 0, 7}, y[M * N];
    CHECK(bitnet_linear_forward(NULL, x, BITNET_F32, M, y, NULL, 0, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_forward(linear, NULL, BITNET_F32, M, y, NULL, 0, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_forward(linear, x, BITNET_F32, M, NULL, NULL, 0, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_forward(linear, x, BITNET_F32, SIZE_MAX, y, NULL, 0, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_forward(linear, x, BITNET_F32, 0, y, NULL, 0, NULL) == BITNET_OK);
    for (int m = 1; m <= M; m++) { /* a vector and a matrix */
        memset(y, 0xff, sizeof y);
        CHECK(bitnet_linear_forward(linear, x, BITNET_F32, m, y, NULL, 0, NULL) == BITNET_OK);
        CHECK(y[0] == 68.5f && y[1] == 0 && y[2] == -64.5f);
    }
    CHECK(y[3] == -57.5f && y[4] == 0 && y[5] == 60);
    /* The same rows as bf16: the upper halves of these numbers are all of them. */
    uint16_t half[M * K];
    for (int i = 0; i < M * K; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        half[i] = (uint16_t)(bits >> 16);
    }
    memset(y, 0xff, sizeof y);
    CHECK(bitnet_linear_forward(linear, half, 99, M, y, NULL, 0, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_forward(linear, half, BITNET_I8, M, y, NULL, 0, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_forward(linear, (char *)half + 1, BITNET_BF16, M, y, NULL, 0, NULL) == BITNET_ARGUMENT);
    CHECK(bitnet_linear_forward(linear, half, BITNET_BF16, M, y, NULL, 0, NULL) == BITNET_OK);
    CHECK(y[0] == 68.5f && y[3] == -57.5f && y[4] == 0 && y[5] == 60);
    bitnet_linear_free(linear);
    bitnet_linear_free(NULL);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && strlen(bitnet_version()) >= 5 && strcmp(bitnet_last_error(), "") == 0);
    sessions(argv[1]);
    layers();
    printf("ok %s\n", bitnet_version());
    return 0;
}
