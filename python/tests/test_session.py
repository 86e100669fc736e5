"""Session over the C library, with the demo model on the CPU: `python3 -m unittest discover python/tests`."""

import json
import pathlib
import sys
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import bitnet_gpu  # noqa: E402

PROMPT = "fn main() {"


class SessionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.session = bitnet_gpu.Session(ROOT / "models/demo", device="cpu")

    def test_a_seed_gives_one_text_streamed_or_not(self):
        made = self.session.generate(PROMPT, max_tokens=16, seed=1)
        self.assertEqual((len(made.tokens), made.finish), (16, "max_tokens"))
        self.assertEqual("".join(self.session.stream(PROMPT, max_tokens=16, seed=1)), made.text)
        self.assertIn("CPU", self.session.device)

    def test_a_callback_ends_the_text_and_may_raise(self):
        made = self.session.generate(PROMPT, max_tokens=100, seed=1, on_text=lambda text: True)
        self.assertEqual(made.finish, "cancelled")

        def raises(text):
            raise KeyError(text)

        with self.assertRaises(KeyError):
            self.session.generate(PROMPT, max_tokens=100, on_text=raises)
        for _ in self.session.stream(PROMPT, max_tokens=1000, ignore_eos=True):
            break  # ends the text, and waits for it

    def test_a_text_is_what_it_has_to_be(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["n"],
                  "additionalProperties": False}
        for given in (schema, json.dumps(schema)):
            made = self.session.generate(PROMPT, json_schema=given, temperature=0.0, max_tokens=100)
            self.assertEqual(made.finish, "grammar")
            self.assertLessEqual(json.loads(made.text)["n"], 99)
        made = self.session.generate(PROMPT, regex="(yes|no)!", seed=2)
        self.assertIn(made.text, ("yes!", "no!"))
        batch = bitnet_gpu.Batch(ROOT / "models/demo", device="cpu", max_batch=2)
        texts = batch.generate([PROMPT] * 3, grammar='start: "a" "b"~3', seed=1)
        self.assertEqual([text.text for text in texts], ["abbb"] * 3)

    def test_what_is_wrong_is_said(self):
        wrong = [
            (bitnet_gpu.Error, lambda: bitnet_gpu.Session("no such model")),
            (ValueError, lambda: bitnet_gpu.Session("models/demo", device="gpu")),
            (ValueError, lambda: bitnet_gpu.Session("models/demo", context=-1)),
            (ValueError, lambda: self.session.generate("a", temperature=float("nan"))),
            (ValueError, lambda: self.session.generate("a", seed=-1)),
            (ValueError, lambda: self.session.generate("a", max_tokens=0)),
            (ValueError, lambda: self.session.generate("a", stop="x\0y")),
            (ValueError, lambda: self.session.generate("a", json_schema="{")),
            (ValueError, lambda: self.session.generate("a", regex="a", grammar="start: /a/")),
            (bitnet_gpu.Error, lambda: self.session.generate("a", regex="(")),
            (TypeError, lambda: self.session.generate("a", grammar_kind=4)),
            (TypeError, lambda: self.session.generate("a", beams=4)),
            (bitnet_gpu.Error, lambda: self.session.generate("a", chat=True)),
            (bitnet_gpu.Error, lambda: self.session.generate("7" * 9000)),
        ]
        for error, call in wrong:
            with self.assertRaises(error) as caught:
                call()
            self.assertTrue(str(caught.exception))
        # And it still works.
        self.assertEqual(len(self.session.generate("a", max_tokens=2, seed=1).tokens), 2)

    def test_threads_wait_for_each_other(self):
        wanted = self.session.generate(PROMPT, max_tokens=8, seed=1).text
        texts = []

        def work():
            texts.append(self.session.generate(PROMPT, max_tokens=8, seed=1).text)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(texts, [wanted] * 4)

    def test_options_of_models(self):
        for settings in (dict(kv="f32", weights="2bit", head="stored"), dict(attention="fast")):
            session = bitnet_gpu.Session(ROOT / "models/demo", device="cpu", context=100, **settings)
            self.assertEqual(session.generate(PROMPT, max_tokens=8, seed=1).finish, "max_tokens")
        for settings in (dict(kv="int4"), dict(attention="slow"), dict(weights="8bit"), dict(head="bf16")):
            with self.assertRaises(ValueError):
                bitnet_gpu.Session(ROOT / "models/demo", device="cpu", **settings)


class BatchTest(unittest.TestCase):
    PROMPTS = [PROMPT, "struct Point {", "use std::", "impl", "// The"]

    @classmethod
    def setUpClass(cls):
        cls.batch = bitnet_gpu.Batch(ROOT / "models/demo", device="cpu", max_batch=2)
        session = bitnet_gpu.Session(ROOT / "models/demo", device="cpu")
        cls.wanted = [session.generate(prompt, max_tokens=12, seed=1, temperature=0.8) for prompt in cls.PROMPTS]

    def same(self, found, wanted):
        self.assertEqual([(t.text, t.tokens, t.finish, t.prompt_tokens) for t in found],
                         [(t.text, t.tokens, t.finish, t.prompt_tokens) for t in wanted])

    def test_each_is_as_alone(self):
        seen = {}

        def take(index, output):
            seen.setdefault(index, []).append(output.text)

        self.same(self.batch.generate(self.PROMPTS, max_tokens=12, seed=1, temperature=0.8, on_output=take), self.wanted)
        self.assertEqual(["".join(seen[i]) for i in range(5)], [text.text for text in self.wanted])
        self.assertEqual(len(self.batch), 0)
        self.assertIn("CPU", self.batch.device)
        self.assertEqual(self.batch.generate([]), [])

    def test_a_token_that_ends_a_text_is_one_of_its_tokens(self):
        session = bitnet_gpu.Session(ROOT / "models/demo", device="cpu")
        settings = [dict(max_tokens=200, seed=seed, temperature=1.2) for seed in range(40)]
        ended = ((setting, session.generate(PROMPT, **setting)) for setting in settings)
        setting, wanted = next((setting, text) for setting, text in ended if text.finish == "stop_token")
        self.same(self.batch.generate([PROMPT], **setting), [wanted])
        self.assertNotIn(wanted.tokens[-1], wanted.tokens[:-1])

    def test_what_was_asked_before_is_not_computed_again(self):
        prompt = "let mut total = 0;\n" * 20
        for prefix_cache in [True, False]:
            batch = bitnet_gpu.Batch(ROOT / "models/demo", device="cpu", prompt_share=64, prefix_cache=prefix_cache)
            first, again = [batch.generate([prompt], max_tokens=5, seed=1)[0] for _ in range(2)]
            self.same([again], [first])
            pages = (first.prompt_tokens - 1) // 64
            self.assertGreater(pages, 0)
            self.assertEqual([first.cached_tokens, again.cached_tokens], [0, 64 * pages if prefix_cache else 0])

    def test_guesses_change_no_text(self):
        # It repeats itself, and goes on so.
        prompt, settings = "let mut total = 0;\n" * 12, dict(max_tokens=60, temperature=0.0, ignore_eos=True)
        session = bitnet_gpu.Session(ROOT / "models/demo", device="cpu")
        wanted = session.generate(prompt, **settings)
        self.assertEqual((wanted.drafted_tokens, wanted.accepted_tokens), (0, 0))
        session = bitnet_gpu.Session(ROOT / "models/demo", device="cpu", lookup=15)
        streamed = []
        alone = session.generate(prompt, on_text=streamed.append, **settings)
        batch = bitnet_gpu.Batch(ROOT / "models/demo", device="cpu", lookup=15).generate([prompt] * 3, **settings)
        self.same([alone, *batch], [wanted] * 4)
        self.assertEqual("".join(streamed), wanted.text)
        for made in [alone, *batch]:
            self.assertGreater(made.accepted_tokens, 10)
            self.assertGreaterEqual(made.drafted_tokens, made.accepted_tokens)
        with self.assertRaises(bitnet_gpu.Error):
            bitnet_gpu.Session(ROOT / "models/demo", device="cpu", lookup=256)

    def test_requests_come_and_go(self):
        settings = dict(max_tokens=12, seed=1, temperature=0.8)
        first = self.batch.add(self.PROMPTS[0], **settings)
        self.assertEqual([output.request for output in self.batch.step()], [first])
        second = self.batch.add(self.PROMPTS[1], **settings)
        with self.assertRaises(bitnet_gpu.Full):
            self.batch.add(self.PROMPTS[2], **settings)
        steps = [[output.request for output in self.batch.step()] for _ in range(3)]
        # Its prompt runs when what is there already has been handed out.
        self.assertIn(steps, [[[first]] * i + [[first, second]] * (3 - i) for i in range(3)])
        self.batch.remove(first)
        self.batch.remove(first)
        finished = []
        while len(self.batch):
            finished += [output.finished for output in self.batch.step() if output.finished]
        self.same(finished, self.wanted[1:2])
        self.assertEqual(self.batch.step(), [])

    def test_what_raises_leaves_nothing(self):
        def raises(index, output):
            raise KeyError(index)

        with self.assertRaises(KeyError):
            self.batch.generate(self.PROMPTS, max_tokens=12, on_output=raises)
        self.assertEqual(len(self.batch), 0)
        for error, call in [
            (ValueError, lambda: bitnet_gpu.Batch(ROOT / "models/demo", max_batch=-1)),
            (bitnet_gpu.Error, lambda: bitnet_gpu.Batch(ROOT / "models/demo", device="cpu", max_batch=5000)),
            (ValueError, lambda: self.batch.add("a", temperature=-1.0)),
            (ValueError, lambda: self.batch.remove(-1)),
            (TypeError, lambda: self.batch.add("a", beams=4)),
            (bitnet_gpu.Error, lambda: self.batch.add("a", chat=True)),
            (bitnet_gpu.Error, lambda: self.batch.add("7" * 9000)),
            (bitnet_gpu.Error, lambda: self.batch.generate(["a", "7" * 9000])),
        ]:
            with self.assertRaises(error):
                call()
        self.assertEqual(len(self.batch), 0)


if __name__ == "__main__":
    unittest.main()
