"""Session over the C library, with the demo model on the CPU: `python3 -m unittest discover python/tests`."""

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

    def test_what_is_wrong_is_said(self):
        wrong = [
            (bitnet_gpu.Error, lambda: bitnet_gpu.Session("no such model")),
            (ValueError, lambda: bitnet_gpu.Session("models/demo", device="gpu")),
            (ValueError, lambda: bitnet_gpu.Session("models/demo", context=-1)),
            (ValueError, lambda: self.session.generate("a", temperature=float("nan"))),
            (ValueError, lambda: self.session.generate("a", seed=-1)),
            (ValueError, lambda: self.session.generate("a", max_tokens=0)),
            (ValueError, lambda: self.session.generate("a", stop="x\0y")),
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


if __name__ == "__main__":
    unittest.main()
