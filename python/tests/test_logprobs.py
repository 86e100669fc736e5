"""Log probabilities, biases, penalties and scores, with the demo model on the CPU."""

import collections
import math
import pathlib
import sys
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import bitnet_gpu  # noqa: E402

PROMPT = "fn main() {"
PROMPTS = [PROMPT, "struct Point {", "use std::", "impl"]
GREEDY = dict(temperature=0.0, max_tokens=16, ignore_eos=True)


class LogprobsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.session = bitnet_gpu.Session(ROOT / "models/demo", device="cpu")
        cls.batch = bitnet_gpu.Batch(ROOT / "models/demo", device="cpu", max_batch=2)

    def test_a_greedy_text_is_made_of_the_most_likely_tokens(self):
        self.assertEqual(self.session.generate(PROMPT, **GREEDY).logprobs, [])
        made = self.session.generate(PROMPT, logprobs=3, **GREEDY)
        self.assertEqual(len(made.logprobs), 16)
        for token, told in zip(made.tokens, made.logprobs):
            self.assertEqual((told.rank, len(told.top), told.top[0]), (1, 3, (token, told.logprob)))
            self.assertEqual(told.top, sorted(told.top, key=lambda pair: -pair[1]))
            self.assertLessEqual(sum(math.exp(logprob) for _, logprob in told.top), 1.0001)
        plain = self.session.generate(PROMPT, logprobs=0, **GREEDY)
        self.assertEqual([(told.logprob, told.top) for told in plain.logprobs], [(told.logprob, []) for told in made.logprobs])

    def test_a_batch_tells_what_a_session_tells_and_score_the_same(self):
        settings = dict(logprobs=4, max_tokens=12, seed=5, temperature=1.1)
        wanted = [self.session.generate(prompt, **settings) for prompt in PROMPTS]
        seen = collections.defaultdict(list)
        texts = self.batch.generate(PROMPTS, on_output=lambda index, output: seen[index].append(output.logprobs), **settings)
        ids = [self.batch.encode(prompt) + text.tokens for prompt, text in zip(PROMPTS, texts)]
        scores = self.batch.score(ids)
        for i, (text, alone, score) in enumerate(zip(texts, wanted, scores)):
            self.assertEqual((text.tokens, text.logprobs, seen[i]), (alone.tokens, alone.logprobs, alone.logprobs))
            self.assertEqual(len(score), len(ids[i]) - 1)
            self.assertEqual(score[-len(text.tokens) :], [told.logprob for told in text.logprobs])
        self.assertTrue(any(told.rank > 1 for text in texts for told in text.logprobs))

    def test_texts_are_scored_as_their_ids(self):
        ids = [self.session.encode(text) for text in PROMPTS]
        scores = self.batch.score(PROMPTS)
        self.assertEqual(self.batch.score(ids), scores)
        self.assertEqual([self.batch.score([text])[0] for text in PROMPTS], scores)
        self.assertEqual([len(score) for score in scores], [len(of) - 1 for of in ids])
        self.assertTrue(all(logprob <= 0 for score in scores for logprob in score))
        self.assertEqual((self.batch.score([]), self.batch.score([[5]])), ([], [[]]))
        self.assertEqual(self.batch.encode(PROMPT, bos=False), ids[0][1:])
        self.assertEqual(self.session.encode("", bos=False), [])
        # Words in their order are more likely than turned around.
        line = self.session.encode("fn main() {\n    let mut total = 0;\n", bos=False)
        there, back = self.batch.score([[ids[0][0], *line], [ids[0][0], *line[::-1]]])
        self.assertGreater(sum(there), sum(back) + 10)

    def test_each_token_is_the_best_of_what_is_left_of_the_logits(self):
        plain = self.session.generate(PROMPT, logprobs=20, **GREEDY)
        bias = {plain.tokens[0]: -100.0, plain.logprobs[1].top[3][0]: 2.5}
        for settings in (dict(presence_penalty=2.0), dict(frequency_penalty=2.0), dict(logit_bias=bias),
                         dict(presence_penalty=0.5, frequency_penalty=1.25, logit_bias=bias)):
            made = self.session.generate(PROMPT, logprobs=20, **settings, **{**GREEDY, "max_tokens": 40})
            given = collections.Counter()
            for token, told in zip(made.tokens, made.logprobs):
                def left(pair):
                    count = given[pair[0]]
                    lowered = settings.get("presence_penalty", 0) * (count > 0) + settings.get("frequency_penalty", 0) * count
                    return pair[1] + settings.get("logit_bias", {}).get(pair[0], 0) - lowered

                best = max(told.top, key=left)
                # What is not listed is below the last one that is, but for a token that was made more likely.
                if left(best) > told.top[-1][1] + 2.5:
                    self.assertEqual(token, best[0])
                given[token] += 1
            self.assertNotEqual(made.tokens[:16], plain.tokens)
            if "logit_bias" in settings:
                self.assertNotIn(plain.tokens[0], made.tokens)
        batch = self.batch.generate([PROMPT], logprobs=20, **settings, **{**GREEDY, "max_tokens": 40})[0]
        self.assertEqual((batch.tokens, batch.logprobs), (made.tokens, made.logprobs))
        only = self.session.generate(PROMPT, logit_bias={77: 100}, **GREEDY)
        self.assertEqual(only.tokens, [77] * 16)

    def test_threads_are_told_of_their_own_texts(self):
        wanted = {prompt: self.session.generate(prompt, logprobs=2, **GREEDY).logprobs for prompt in PROMPTS}
        found = []
        threads = [
            threading.Thread(target=lambda prompt=prompt: found.append((prompt, self.session.generate(prompt, logprobs=2, **GREEDY).logprobs)))
            for prompt in PROMPTS
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(dict(found), wanted)
        self.assertEqual(len(found), len(PROMPTS))

    def test_what_is_wrong_is_said(self):
        calls = [
            (ValueError, dict(logprobs=-1)),
            (ValueError, dict(logprobs=21)),
            (TypeError, dict(logprobs=1.5)),
            (ValueError, dict(presence_penalty=2.5)),
            (ValueError, dict(frequency_penalty=float("nan"))),
            (ValueError, dict(logit_bias={5: 101})),
            (ValueError, dict(logit_bias={-1: 1})),
            (ValueError, dict(logit_bias={1 << 32: 1})),
            (ValueError, dict(logit_bias={1 << 31: 1})),
            (ValueError, dict(logit_bias={token: 1 for token in range(1025)})),
            (TypeError, dict(logit_bias={"5": 1})),
            (TypeError, dict(logit_bias={5: "1"})),
            (TypeError, dict(biases=1)),
            (TypeError, dict(bias_ids=None)),
        ]
        for error, settings in calls:
            for call in (self.session.generate, self.batch.add):
                with self.assertRaises(error, msg=settings) as caught:
                    call("a", **settings)
                self.assertTrue(str(caught.exception))
        wrong = [
            (TypeError, PROMPT),
            (TypeError, [5]),
            (TypeError, [["5"]]),
            (ValueError, [[]]),
            (ValueError, [[1, 2], []]),
            (ValueError, [[-1]]),
            (ValueError, [[1 << 40]]),
            (ValueError, [[99999999]]),
            (ValueError, [[1] * 9000]),
        ]
        for error, texts in wrong:
            with self.assertRaises(error, msg=texts):
                self.batch.score(texts)
        self.assertEqual(len(self.batch), 0)
        request = self.batch.add("a", max_tokens=2)
        with self.assertRaises(bitnet_gpu.Full):
            self.batch.score([[1, 2]])
        self.batch.remove(request)
        self.assertEqual(len(self.batch.score([[1, 2]])[0]), 1)


if __name__ == "__main__":
    unittest.main()
