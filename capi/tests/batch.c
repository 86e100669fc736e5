/* Several texts at once: each as a session gives it alone, and what must be refused: batch MODEL. Prints "ok" at the end. */
#include <string.h>

#include "check.h"

enum { TEXTS = 3 };
static const char *const prompts[TEXTS] = {"fn main() {", "struct Point {", "use std::"};

/* What has come of a request. */
struct text {
    uint64_t request;
    char text[4096];
    size_t bytes;
    size_t tokens;
    bitnet_generated generated;
    int finished;
};

static void append(struct text *to, const char *text, size_t bytes)
{
    CHECK(to->bytes + bytes < sizeof to->text);
    memcpy(to->text + to->bytes, text, bytes);
    to->bytes += bytes;
}

static int alone(void *user, uint32_t token, const char *text, size_t bytes)
{
    (void)token;
    append(user, text, bytes);
    return 0;
}

static void take(void *user, const bitnet_output *output)
{
    struct text *texts = user;
    CHECK(output->struct_bytes == sizeof *output);
    for (int i = 0; i < TEXTS; i++)
        if (texts[i].request == output->request) {
            append(&texts[i], output->text, output->text_bytes);
            texts[i].tokens++;
            texts[i].finished = output->finished;
            if (output->finished)
                texts[i].generated = output->generated;
            return;
        }
    CHECK(!"a request of ours");
}

static bitnet_sampling sampling_of(int i)
{
    bitnet_sampling sampling;
    CHECK(bitnet_sampling_default(&sampling) == BITNET_OK);
    sampling.seed = (uint64_t)i + 1;
    sampling.max_tokens = 6 + 5 * (size_t)i;
    sampling.temperature = i == 0 ? 0 : 0.8f;
    return sampling;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    static struct text wanted[TEXTS], found[TEXTS];
    bitnet_options options;
    CHECK(bitnet_options_default(&options) == BITNET_OK);
    options.device = "cpu";
    bitnet_session *session;
    CHECK(bitnet_session_open(argv[1], &options, &session) == BITNET_OK);
    for (int i = 0; i < TEXTS; i++) {
        bitnet_sampling sampling = sampling_of(i);
        wanted[i].generated.struct_bytes = sizeof wanted[i].generated;
        CHECK(bitnet_session_generate(session, prompts[i], strlen(prompts[i]), 0, NULL, &sampling, alone, &wanted[i],
                                      &wanted[i].generated) == BITNET_OK);
    }
    bitnet_session_free(session);

    bitnet_batch *batch = (bitnet_batch *)&batch;
    options.max_batch = 2;
    bitnet_options wrong[5] = {options, options, options, options, options};
    wrong[0].struct_bytes = 8;
    wrong[1].kv = 3;
    wrong[2].attention = -1;
    wrong[3].weights = 9;
    wrong[4].device = "cuda:0,0";
    for (int i = 0; i < 5; i++) {
        REFUSED(bitnet_batch_open(argv[1], &wrong[i], &batch));
        CHECK(batch == NULL);
    }
    REFUSED(bitnet_batch_open(NULL, &options, &batch));
    REFUSED(bitnet_batch_open(argv[1], &options, NULL));
    CHECK(bitnet_batch_open("no such model", &options, &batch) == BITNET_FAILED);
    options.max_batch = 5000;
    CHECK(bitnet_batch_open(argv[1], &options, &batch) == BITNET_FAILED && *bitnet_last_error());
    options.max_batch = 2;
    options.lookup = 256;
    CHECK(bitnet_batch_open(argv[1], &options, &batch) == BITNET_FAILED && *bitnet_last_error());
    options.lookup = 5;
    CHECK(bitnet_batch_open(argv[1], &options, &batch) == BITNET_OK);
    char device[100];
    CHECK(bitnet_batch_device(batch, device, sizeof device) == BITNET_OK && strstr(device, "CPU"));

    bitnet_sampling sampling = sampling_of(0), bad = sampling;
    uint64_t request;
    const char *prompt = prompts[0];
    bad.temperature = -1;
    REFUSED(bitnet_batch_add(NULL, prompt, 3, 0, NULL, &sampling, &request));
    REFUSED(bitnet_batch_add(batch, NULL, 3, 0, NULL, &sampling, &request));
    REFUSED(bitnet_batch_add(batch, prompt, 3, 0, NULL, &bad, &request));
    REFUSED(bitnet_batch_add(batch, prompt, 3, 0, NULL, &sampling, NULL));
    REFUSED(bitnet_batch_add(batch, prompt, 3, 0, "a system", &sampling, &request));
    REFUSED(bitnet_batch_add(batch, "\xff", 1, 0, NULL, &sampling, &request));
    /* The demo model has no chat template. */
    CHECK(bitnet_batch_add(batch, prompt, 3, 1, NULL, &sampling, &request) == BITNET_FAILED);
    size_t count = 7;
    REFUSED(bitnet_batch_len(batch, NULL));
    REFUSED(bitnet_batch_len(NULL, &count));
    CHECK(bitnet_batch_len(batch, &count) == BITNET_OK && count == 0);
    REFUSED(bitnet_batch_step(NULL, take, found));
    REFUSED(bitnet_batch_remove(NULL, 0));
    CHECK(bitnet_batch_remove(batch, 12345) == BITNET_OK);
    CHECK(bitnet_batch_step(batch, take, found) == BITNET_OK);
    REFUSED(bitnet_batch_device(batch, NULL, 0));

    /* Two at once, the third when one of them has ended; another one comes and goes between. */
    int added = 0;
    while (added < TEXTS || count > 0) {
        while (added < TEXTS) {
            bitnet_sampling of = sampling_of(added);
            bitnet_status status =
                bitnet_batch_add(batch, prompts[added], strlen(prompts[added]), 0, NULL, &of, &found[added].request);
            if (status == BITNET_FULL)
                break;
            CHECK(status == BITNET_OK);
            added++;
        }
        CHECK(bitnet_batch_len(batch, &count) == BITNET_OK && count <= 2);
        if (count == 1 && bitnet_batch_add(batch, "a", 1, 0, NULL, NULL, &request) == BITNET_OK)
            CHECK(bitnet_batch_remove(batch, request) == BITNET_OK);
        CHECK(bitnet_batch_step(batch, take, found) == BITNET_OK);
        CHECK(bitnet_batch_len(batch, &count) == BITNET_OK);
    }
    for (int i = 0; i < TEXTS; i++) {
        CHECK(found[i].finished && found[i].bytes == wanted[i].bytes);
        CHECK(memcmp(found[i].text, wanted[i].text, found[i].bytes) == 0);
        CHECK(found[i].generated.generated_tokens == wanted[i].generated.generated_tokens);
        CHECK(found[i].generated.finish == wanted[i].generated.finish);
        CHECK(found[i].tokens == found[i].generated.generated_tokens);
    }
    bitnet_batch_free(batch);
    bitnet_batch_free(NULL);
    printf("ok %s\n", bitnet_version());
    return 0;
}
