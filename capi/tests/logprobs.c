/* What is told of tokens, biases and penalties, ids and scores: logprobs MODEL. Prints "ok" at the end. */
#include <math.h>
#include <string.h>

#include "check.h"

enum { TOKENS = 12, TOP = 5, ROOM = 64 };
static const char prompt[] = "fn main() {";

/* A text by its tokens. */
struct text {
    uint32_t tokens[ROOM];
    size_t count;
    bitnet_logprobs told[ROOM];
};

static int note(void *user, uint32_t token, const char *text, size_t bytes)
{
    struct text *of = user;
    (void)text;
    (void)bytes;
    CHECK(of->count < ROOM);
    of->tokens[of->count++] = token;
    return 0;
}

static void take(void *user, const bitnet_output *output)
{
    struct text *of = user;
    CHECK(of->count < ROOM && (output->logprobs != NULL) == (output->request % 2 == 0));
    if (output->logprobs) {
        CHECK(output->logprobs->struct_bytes == sizeof *output->logprobs);
        of->told[of->count] = *output->logprobs;
        of->tokens[of->count++] = output->token;
    }
}

/* A text of a session, with what was told of it. */
static struct text made(bitnet_session *session, const bitnet_sampling *sampling)
{
    struct text text = {.count = 0};
    bitnet_generated out = {.struct_bytes = sizeof out};
    CHECK(bitnet_session_generate(session, prompt, strlen(prompt), 0, NULL, sampling, note, &text, &out) == BITNET_OK);
    CHECK(out.generated_tokens == TOKENS && text.count >= TOKENS);
    text.count = TOKENS; /* the last one may have come twice */
    for (size_t i = 0; i < TOKENS && sampling->logprobs >= 0; i++) {
        text.told[i].struct_bytes = sizeof text.told[i];
        CHECK(bitnet_session_logprobs(session, i, &text.told[i]) == BITNET_OK);
        CHECK(text.told[i].top == (uint32_t)sampling->logprobs);
    }
    return text;
}

static int holds(const struct text *text, uint32_t token)
{
    for (size_t i = 0; i < text->count; i++)
        if (text->tokens[i] == token)
            return 1;
    return 0;
}

static bitnet_sampling greedy(void)
{
    bitnet_sampling sampling;
    CHECK(bitnet_sampling_default(&sampling) == BITNET_OK);
    CHECK(sampling.logprobs == -1 && sampling.biases == 0 && sampling.presence_penalty == 0 && sampling.frequency_penalty == 0);
    sampling.max_tokens = TOKENS;
    sampling.temperature = 0;
    sampling.ignore_eos = 1;
    return sampling;
}

/* Prompt and text as ids; their number. */
static size_t whole(bitnet_session *session, const struct text *text, uint32_t *ids)
{
    size_t count = 0;
    CHECK(bitnet_session_encode(session, prompt, strlen(prompt), 1, ids, ROOM - TOKENS, &count) == BITNET_OK);
    CHECK(count > 1 && count < ROOM - TOKENS);
    memcpy(ids + count, text->tokens, TOKENS * sizeof *ids);
    return count + TOKENS;
}

static void refusals(bitnet_session *session, bitnet_batch *batch)
{
    uint32_t ids[4] = {1, 2, 1, 99999999};
    float bias[4] = {1, -100, 1, 1}, logprobs[4];
    size_t count, lengths[2] = {2, 1};
    uint64_t request;
    bitnet_sampling plain = greedy(), bad[13];
    for (int i = 0; i < 13; i++) {
        bad[i] = plain;
        bad[i].bias_ids = ids;
        bad[i].bias = bias;
        bad[i].biases = 2;
    }
    bad[0].bias_ids = NULL;
    bad[1].bias = NULL;
    bad[2].biases = SIZE_MAX;
    bad[3].biases = 1025;
    bad[4].biases = 3; /* one of them twice */
    bad[5].bias_ids = ids + 2; /* one is no token */
    bad[6].bias_ids = (const uint32_t *)((const char *)ids + 1);
    bad[7].presence_penalty = 2.5f;
    bad[8].frequency_penalty = NAN;
    bad[9].logprobs = BITNET_MAX_LOGPROBS + 1;
    bad[10].logprobs = -2;
    bad[11].struct_bytes -= 16;
    bad[12].biases = 1;
    bad[12].bias = &(float){100.5f};
    for (int i = 0; i < 13; i++) {
        REFUSED(bitnet_session_generate(session, "a", 1, 0, NULL, &bad[i], NULL, NULL, NULL));
        REFUSED(bitnet_batch_add(batch, "a", 1, 0, NULL, &bad[i], &request));
    }

    bitnet_logprobs told = {.struct_bytes = sizeof told};
    REFUSED(bitnet_session_logprobs(NULL, 0, &told));
    REFUSED(bitnet_session_logprobs(session, 0, NULL));
    REFUSED(bitnet_session_logprobs(session, TOKENS, &told));
    REFUSED(bitnet_session_logprobs(session, SIZE_MAX, &told));
    CHECK(bitnet_session_logprobs(session, TOKENS - 1, &told) == BITNET_OK);
    told.struct_bytes = 8;
    REFUSED(bitnet_session_logprobs(session, 0, &told));

    REFUSED(bitnet_session_encode(NULL, "a", 1, 1, ids, 4, &count));
    REFUSED(bitnet_session_encode(session, NULL, 1, 1, ids, 4, &count));
    REFUSED(bitnet_session_encode(session, "a", SIZE_MAX, 1, ids, 4, &count));
    REFUSED(bitnet_session_encode(session, "\xff", 1, 1, ids, 4, &count));
    REFUSED(bitnet_session_encode(session, "a", 1, 1, NULL, 4, &count));
    REFUSED(bitnet_session_encode(session, "a", 1, 1, ids, SIZE_MAX, &count));
    REFUSED(bitnet_session_encode(session, "a", 1, 1, ids, 4, NULL));
    REFUSED(bitnet_batch_encode(NULL, "a", 1, 1, ids, 4, &count));

    REFUSED(bitnet_batch_score(NULL, ids, lengths, 2, logprobs, NULL));
    REFUSED(bitnet_batch_score(batch, NULL, lengths, 2, logprobs, NULL));
    REFUSED(bitnet_batch_score(batch, ids, NULL, 2, logprobs, NULL));
    REFUSED(bitnet_batch_score(batch, ids, lengths, 2, NULL, NULL));
    REFUSED(bitnet_batch_score(batch, ids, lengths, SIZE_MAX, logprobs, NULL));
    REFUSED(bitnet_batch_score(batch, ids, lengths, 2, logprobs, (uint32_t *)((char *)ids + 2)));
    size_t wrong[][2] = {{0, 1}, {1, 0}, {SIZE_MAX, 2}, {2, ROOM + 1}, {2, 2}};
    for (int i = 0; i < 5; i++) /* the last one by its fourth id */
        REFUSED(bitnet_batch_score(batch, ids, wrong[i], 2, logprobs, NULL));
    CHECK(bitnet_batch_score(batch, NULL, NULL, 0, NULL, NULL) == BITNET_OK);
    CHECK(bitnet_batch_score(batch, ids, lengths + 1, 1, NULL, NULL) == BITNET_OK);

    /* Not beside others, whose outputs would be lost. */
    CHECK(bitnet_batch_add(batch, "a", 1, 0, NULL, &plain, &request) == BITNET_OK);
    logprobs[0] = 7;
    CHECK(bitnet_batch_score(batch, ids, lengths, 2, logprobs, NULL) == BITNET_FULL && logprobs[0] == 7);
    CHECK(bitnet_batch_remove(batch, request) == BITNET_OK);
    CHECK(bitnet_batch_score(batch, ids, lengths, 2, logprobs, NULL) == BITNET_OK && logprobs[0] < 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    bitnet_options options;
    CHECK(bitnet_options_default(&options) == BITNET_OK);
    options.device = "cpu";
    options.context = ROOM;
    options.max_batch = 2;
    bitnet_session *session;
    bitnet_batch *batch;
    CHECK(bitnet_session_open(argv[1], &options, &session) == BITNET_OK);
    CHECK(bitnet_batch_open(argv[1], &options, &batch) == BITNET_OK);

    /* The most likely token is the one that is taken, and is told so. */
    bitnet_sampling sampling = greedy(), plain = greedy();
    struct text silent = made(session, &plain);
    bitnet_logprobs told = {.struct_bytes = sizeof told};
    REFUSED(bitnet_session_logprobs(session, 0, &told));
    sampling.logprobs = TOP;
    struct text text = made(session, &sampling);
    CHECK(memcmp(text.tokens, silent.tokens, TOKENS * sizeof *text.tokens) == 0);
    for (size_t i = 0; i < TOKENS; i++) {
        const bitnet_logprobs *of = &text.told[i];
        CHECK(of->logprob < 0 && of->rank == 1 && of->top_ids[0] == text.tokens[i] && of->top_logprobs[0] == of->logprob);
        for (int j = 1; j < TOP; j++)
            CHECK(of->top_logprobs[j] <= of->top_logprobs[j - 1] && of->top_ids[j] != of->top_ids[j - 1]);
    }

    /* A batch tells the same, of the requests that ask for it: those with even numbers. */
    struct text stepped = {.count = 0};
    uint64_t first, second;
    CHECK(bitnet_batch_add(batch, prompt, strlen(prompt), 0, NULL, &sampling, &first) == BITNET_OK && first % 2 == 0);
    CHECK(bitnet_batch_add(batch, prompt, strlen(prompt), 0, NULL, &plain, &second) == BITNET_OK && second % 2 == 1);
    for (size_t left = 1; left > 0;) {
        CHECK(bitnet_batch_step(batch, take, &stepped) == BITNET_OK);
        CHECK(bitnet_batch_len(batch, &left) == BITNET_OK);
    }
    CHECK(stepped.count == TOKENS && memcmp(stepped.tokens, text.tokens, TOKENS * sizeof *text.tokens) == 0);
    for (size_t i = 0; i < TOKENS; i++) {
        const bitnet_logprobs *a = &stepped.told[i], *b = &text.told[i];
        CHECK(a->logprob == b->logprob && a->rank == b->rank && a->top == TOP);
        CHECK(memcmp(a->top_ids, b->top_ids, sizeof a->top_ids) == 0);
        CHECK(memcmp(a->top_logprobs, b->top_logprobs, sizeof a->top_logprobs) == 0);
    }

    /* The same tokens, scored: alone, and between others. */
    uint32_t ids[3 * ROOM], ranks[3 * ROOM];
    float logprobs[3 * ROOM];
    size_t count = whole(session, &text, ids), start = count - TOKENS;
    CHECK(bitnet_batch_score(batch, ids, &count, 1, logprobs, ranks) == BITNET_OK);
    for (size_t i = 0; i < TOKENS; i++)
        CHECK(logprobs[start - 1 + i] == text.told[i].logprob && ranks[start - 1 + i] == 1);
    size_t lengths[3] = {start, count, 2};
    memmove(ids + start, ids, count * sizeof *ids);
    memcpy(ids + start + count, ids, 2 * sizeof *ids);
    float three[3 * ROOM];
    CHECK(bitnet_batch_score(batch, ids, lengths, 3, three, NULL) == BITNET_OK);
    CHECK(memcmp(three, logprobs, (start - 1) * sizeof *three) == 0);
    CHECK(memcmp(three + start - 1, logprobs, (count - 1) * sizeof *three) == 0);
    CHECK(three[start + count - 2] == logprobs[0]);

    /* -100 keeps a token out, 100 lets no other one come; what is told is the model's own. */
    uint32_t barred = text.tokens[0], forced = text.told[0].top_ids[TOP - 1];
    sampling.bias_ids = &barred;
    sampling.bias = &(float){-100};
    sampling.biases = 1;
    struct text without = made(session, &sampling);
    CHECK(holds(&text, barred) && !holds(&without, barred));
    CHECK(without.tokens[0] == text.told[0].top_ids[1] && without.told[0].rank == 2);
    CHECK(without.told[0].logprob == text.told[0].top_logprobs[1] && without.told[0].top_ids[0] == barred);
    uint32_t both[2] = {barred, forced};
    sampling.bias_ids = both;
    sampling.bias = (float[]){-3.5f, 100};
    sampling.biases = 2;
    struct text same = made(session, &sampling);
    for (size_t i = 0; i < TOKENS; i++)
        CHECK(same.tokens[i] == forced);
    CHECK(same.told[0].logprob == text.told[0].top_logprobs[TOP - 1]);
    count = whole(session, &same, ids);
    CHECK(bitnet_batch_score(batch, ids, &count, 1, logprobs, ranks) == BITNET_OK);
    for (size_t i = 0; i < TOKENS; i++)
        CHECK(logprobs[start - 1 + i] == same.told[i].logprob && ranks[start - 1 + i] == same.told[i].rank);
    sampling.biases = 0;
    sampling.bias_ids = NULL;
    sampling.bias = NULL;
    struct text again = made(session, &sampling);
    CHECK(memcmp(again.tokens, text.tokens, TOKENS * sizeof *text.tokens) == 0);

    /* Ids: as many as there is room for, with BOS and without. */
    uint32_t some[ROOM] = {7, 7};
    size_t all = 0, few = 0, bare = 0;
    CHECK(bitnet_batch_encode(batch, prompt, strlen(prompt), 1, NULL, 0, &all) == BITNET_OK && all == start);
    CHECK(bitnet_batch_encode(batch, prompt, strlen(prompt), 1, some, 1, &few) == BITNET_OK && few == all);
    CHECK(some[0] == ids[0] && some[1] == 7);
    CHECK(bitnet_batch_encode(batch, prompt, strlen(prompt), 0, some, ROOM, &bare) == BITNET_OK && bare == all - 1);
    CHECK(memcmp(some, ids + 1, bare * sizeof *some) == 0);
    CHECK(bitnet_batch_encode(batch, "", 0, 0, some, ROOM, &bare) == BITNET_OK && bare == 0);

    refusals(session, batch);
    bitnet_session_free(session);
    bitnet_batch_free(batch);
    printf("ok %s\n", bitnet_version());
    return 0;
}
