//! Stop strings over a stream of text pieces.
//!
//! A stop string may begin in one piece and end in another, so the longest tail that could still
//! become one is held back; everything before it is handed on at once. The first stop string to be
//! completed ends the stream, and of several completed by the same character the longest. So the
//! result does not depend on how the text was cut into pieces.

/// Finds stop strings in a stream and holds back what might become one.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    done: bool,
}

/// What one piece of text led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that is certainly not part of a stop string.
    pub text: String,
    /// Index of the stop string that ended the stream.
    pub stopped: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`; empty strings in it never match.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.to_vec(), held: String::new(), done: false }
    }

    /// Takes the next piece. After a stop every further piece gives an empty step.
    pub fn push(&mut self, piece: &str) -> StopStep {
        if self.done {
            return StopStep::default();
        }
        self.held.push_str(piece);
        if let Some((index, start)) = self.first_completed() {
            self.done = true;
            let mut text = std::mem::take(&mut self.held);
            text.truncate(start);
            return StopStep { text, stopped: Some(index) };
        }
        let keep = self.possible_start();
        let tail = self.held.split_off(keep);
        StopStep { text: std::mem::replace(&mut self.held, tail), stopped: None }
    }

    /// Ends the stream and returns what was held back; empty after a stop.
    pub fn finish(&mut self) -> String {
        self.done = true;
        std::mem::take(&mut self.held)
    }

    /// Index and start of the match that ends first; of those, the one that starts first.
    fn first_completed(&self) -> Option<(usize, usize)> {
        let matches = self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        matches
            .filter_map(|(i, stop)| Some((i, self.held.find(stop.as_str())?, stop.len())))
            .min_by_key(|&(_, start, bytes)| (start + bytes, start))
            .map(|(i, start, _)| (i, start))
    }

    /// Byte where the longest tail starts that is the beginning of a stop string.
    fn possible_start(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        (from..self.held.len())
            .filter(|&i| self.held.is_char_boundary(i))
            .find(|&i| self.stops.iter().any(|stop| stop.starts_with(&self.held[i..])))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut out = String::new();
        for piece in pieces {
            let step = matcher.push(piece);
            out += &step.text;
            if step.stopped.is_some() {
                return (out, step.stopped);
            }
        }
        (out + &matcher.finish(), None)
    }

    #[test]
    fn a_stop_over_three_pieces_is_cut_out() {
        assert_eq!(run(&["</s>"], &["ab<", "/", "s>c"]), ("ab".into(), Some(0)));
        assert_eq!(run(&["</s>"], &["ab<", "/", "t>c"]), ("ab</t>c".into(), None));
    }

    #[test]
    fn nothing_is_held_that_cannot_become_a_stop() {
        let mut matcher = StopMatcher::new(&["\n\n".to_string()]);
        assert_eq!(matcher.push("a\n").text, "a");
        assert_eq!(matcher.push("b").text, "\nb");
    }

    #[test]
    fn the_first_to_end_wins_and_then_the_longest() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), ("xa".into(), Some(1)));
        assert_eq!(run(&["c", "bc"], &["abc"]), ("a".into(), Some(1)));
    }

    #[test]
    fn a_repeating_stop_is_found_after_a_false_start() {
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), Some(0)));
    }

    /// The rule of the module's contract, one character at a time.
    fn oracle(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|&i| text.is_char_boundary(i)) {
            let hit = (0..stops.len()).filter(|&i| text[..end].ends_with(stops[i].as_str()));
            if let Some(i) = hit.max_by_key(|&i| (stops[i].len(), usize::MAX - i)) {
                return (text[..end - stops[i].len()].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_the_pieces(
            stops in proptest::collection::vec("[abé]{1,4}", 0..4),
            pieces in proptest::collection::vec("[abéc]{0,5}", 0..12),
        ) {
            let names: Vec<&str> = stops.iter().map(String::as_str).collect();
            let parts: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&names, &parts), oracle(&stops, &pieces.concat()));
        }
    }
}
