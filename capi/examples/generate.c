/* Continues a prompt: generate MODEL PROMPT [DEVICE] */
#include <stdio.h>
#include <string.h>

#include "bitnet.h"

static int print(void *user, uint32_t token, const char *text, size_t bytes)
{
    (void)user;
    (void)token;
    /* A reader that has left ends the text. */
    return fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT [DEVICE]\n", argv[0]);
        return 2;
    }
    bitnet_options options;
    bitnet_sampling sampling;
    bitnet_options_default(&options);
    bitnet_sampling_default(&sampling);
    options.device = argc > 3 ? argv[3] : NULL;
    sampling.max_tokens = 32;
    sampling.seed = 1;

    bitnet_session *session;
    if (bitnet_session_open(argv[1], &options, &session) != BITNET_OK) {
        fprintf(stderr, "error: %s\n", bitnet_last_error());
        return 1;
    }
    bitnet_generated made = {.struct_bytes = sizeof made};
    bitnet_status status = bitnet_session_generate(session, argv[2], strlen(argv[2]), 0, NULL, &sampling, print, NULL, &made);
    if (status == BITNET_OK) {
        char device[200];
        bitnet_session_device(session, device, sizeof device);
        printf("\n");
        fprintf(stderr, "%zu tokens on %s\n", made.generated_tokens, device);
    } else {
        fprintf(stderr, "error: %s\n", bitnet_last_error());
    }
    bitnet_session_free(session);
    return status == BITNET_OK ? 0 : 1;
}
