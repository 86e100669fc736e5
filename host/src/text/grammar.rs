//! What a text may be: a JSON schema, a regular expression or a grammar, and which tokens that allows next.
//!
//! The work is done by the `llguidance` crate, over the bytes of this tokenizer's tokens. Special tokens are no part of a
//! grammar's text; where the text may end, the tokens that end it are allowed.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde::Serialize;
use serde_json::{Value, json};

use super::error::guarded;
use super::{TextError, Tokenizer};

/// Most states of a grammar's lexer that are kept, at 1 to 2 KB each.
const MAX_STATES: usize = 50_000;
/// Longest grammar in bytes.
pub const MAX_GRAMMAR_BYTES: usize = 256 << 10;

/// What a text may be.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grammar {
    /// A JSON value of this [schema](https://json-schema.org). What is not known of a schema is refused. Between its parts stands a blank or a line
    /// break with indentation, or nothing, so that a model cannot go on with blanks for ever; a schema's own `x-guidance` says otherwise.
    JsonSchema(Value),
    /// A text that this regular expression matches as a whole, in the syntax of the `regex` crate, without anchors and word boundaries.
    Regex(String),
    /// A text of this grammar, in the form of [Lark](https://lark-parser.readthedocs.io/en/latest/grammar.html) that `llguidance` takes.
    Lark(String),
}

impl Grammar {
    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(json!({ "type": "object" }))
    }

    /// One of these texts.
    ///
    /// # Errors
    /// None, or an empty one.
    pub fn choice<T: AsRef<str>>(texts: &[T]) -> Result<Self, TextError> {
        if texts.is_empty() || texts.iter().any(|text| text.as_ref().is_empty()) {
            let (name, found) = ("choice", format!("{} texts", texts.len()));
            return Err(TextError::Setting {
                name,
                found,
                allowed: "one text or more, none empty",
            });
        }
        let quoted = texts.iter().map(|text| Value::from(text.as_ref()).to_string());
        Ok(Self::Lark(format!("start: {}\n", quoted.collect::<Vec<_>>().join(" | "))))
    }

    fn len(&self) -> usize {
        match self {
            Self::JsonSchema(schema) => schema.to_string().len(),
            Self::Regex(text) | Self::Lark(text) => text.len(),
        }
    }
}

/// Makes [`Constraint`]s for the tokens of one tokenizer.
pub struct GrammarCompiler {
    factory: ParserFactory,
    /// Ids of the model; one more, which is no token, stands for the end of a text.
    vocab: usize,
}

impl GrammarCompiler {
    /// For a model with `vocab` tokens. Takes some 100 ms for 128,256.
    ///
    /// # Errors
    /// [`TextError::Grammar`] for tokens that `llguidance` does not take.
    pub fn new(tokenizer: &Tokenizer, vocab: usize) -> Result<Self, TextError> {
        let word = |id: u32| match tokenizer.token_bytes(id) {
            Some(bytes) if tokenizer.is_special(id) => {
                [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
            }
            Some(bytes) => bytes.to_vec(),
            None => Vec::new(),
        };
        let end = vocab as u32;
        let mut words: Vec<Vec<u8>> = (0..end).map(word).collect();
        words.push([&[TokTrie::SPECIAL_TOKEN_MARKER][..], b"<end of text>"].concat());
        let make = || {
            let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &words);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let mut factory = ParserFactory::new_simple(&env).map_err(|e| e.to_string())?;
            let limits = factory.quiet().limits_mut();
            (limits.verbose_errors, limits.max_lexer_states) = (false, MAX_STATES);
            Ok(factory)
        };
        let factory = guarded(make, broken).map_err(|reason| TextError::Grammar { reason })?;
        Ok(Self { factory, vocab })
    }

    /// What holds a text to `grammar`.
    ///
    /// # Errors
    /// [`TextError::TooLarge`] above [`MAX_GRAMMAR_BYTES`], [`TextError::Grammar`] for one that is wrong, that takes too much, or that no text has.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, TextError> {
        let bytes = grammar.len();
        if bytes > MAX_GRAMMAR_BYTES {
            let (what, found, allowed) = ("the grammar", bytes as u64, MAX_GRAMMAR_BYTES as u64);
            return Err(TextError::TooLarge { what: what.into(), found, allowed });
        }
        let top = match grammar.clone() {
            Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(brief(schema)),
            Grammar::Regex(text) => TopLevelGrammar::from_regex(&text),
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text),
        };
        let make = || self.factory.create_parser(top).map_err(|e| e.to_string());
        let parser = guarded(make, broken).map_err(|reason| TextError::Grammar { reason })?;
        let mut matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(reason) => Err(TextError::Grammar { reason }),
            None => Ok(Constraint { vocab: self.vocab, allowed: mask(&mut matcher)?, matcher }),
        }
    }
}

/// A text that is held to a grammar, as far as it is there.
pub struct Constraint {
    matcher: Matcher,
    vocab: usize,
    /// What may come next; none where nothing may.
    allowed: Option<SimpleVob>,
}

impl Constraint {
    /// Tokens of the model that it was made for.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Whether the text may end here.
    pub fn may_end(&self) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.is_allowed(self.vocab as u32))
    }

    /// Whether nothing may follow.
    pub fn is_complete(&self) -> bool {
        let one = |allowed: &SimpleVob| allowed.num_set() == usize::from(self.may_end());
        self.allowed.as_ref().is_none_or(one)
    }

    /// Whether `token` may come next.
    pub fn allows(&self, token: u32) -> bool {
        let is_there = (token as usize) < self.vocab;
        is_there && self.allowed.as_ref().is_some_and(|allowed| allowed.is_allowed(token))
    }

    /// The tokens that may come next, 32 to a word from the lowest bit on; bits behind the vocabulary say nothing.
    pub fn words(&self) -> &[u32] {
        self.allowed.as_ref().map_or(&[], |allowed| allowed.as_slice())
    }

    /// Takes the next token of the text.
    ///
    /// # Errors
    /// [`TextError::Grammar`] for one that is not [allowed](Constraint::allows), and where telling what may follow takes too much.
    pub fn push(&mut self, token: u32) -> Result<(), TextError> {
        if !self.allows(token) {
            let reason = format!("token {token} is not allowed here");
            return Err(TextError::Grammar { reason });
        }
        let taken = self.matcher.consume_token(token);
        taken.map_err(|e| TextError::Grammar { reason: e.to_string() })?;
        self.allowed = mask(&mut self.matcher)?;
        Ok(())
    }
}

/// A schema whose texts have no more white space between their parts than a line break and its indentation.
fn brief(mut schema: Value) -> Value {
    if let Value::Object(fields) = &mut schema {
        let space = r"\r?\n[ \t]{0,40}|[ \t]";
        fields.entry("x-guidance").or_insert_with(|| json!({ "whitespace_pattern": space }));
    }
    schema
}

/// What `matcher` allows next; none where it has come to its end.
fn mask(matcher: &mut Matcher) -> Result<Option<SimpleVob>, TextError> {
    if matcher.is_stopped() && !matcher.is_error() {
        return Ok(None);
    }
    let mask = matcher.compute_mask();
    mask.map(Some).map_err(|e| TextError::Grammar { reason: e.to_string() })
}

/// A panic inside the `llguidance` crate.
fn broken(words: String) -> String {
    format!("the grammar engine failed inside: {words}")
}
