//! Grammars of texts, compiled where nobody waits for it.

use std::sync::{Arc, OnceLock};

use super::SessionError;
use crate::text::{Constraint, Grammar, GrammarCompiler, Tokenizer};

/// Compiles grammars for the tokens of an engine, on any thread. What is the same for all of them is made once, for all clones.
#[derive(Clone)]
pub struct Grammars {
    tokenizer: Option<Arc<Tokenizer>>,
    vocab: usize,
    compiler: Arc<OnceLock<GrammarCompiler>>,
}

impl Grammars {
    pub(super) fn new(tokenizer: Option<Arc<Tokenizer>>, vocab: usize) -> Self {
        Self { tokenizer, vocab, compiler: Arc::default() }
    }

    /// What holds a text to `grammar`, for [`super::BatchEngine::add_constrained`]. Takes about a millisecond for a grammar of a few lines, the first time some 100 ms
    /// more.
    ///
    /// # Errors
    /// [`SessionError::NoTokenizer`]; a grammar that is wrong, that takes too much, or that no text has ([`crate::text::TextError`]).
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, SessionError> {
        let compiler = match self.compiler.get() {
            Some(compiler) => compiler,
            None => {
                let tokenizer = self.tokenizer.as_deref().ok_or(SessionError::NoTokenizer)?;
                let made = GrammarCompiler::new(tokenizer, self.vocab)?;
                self.compiler.get_or_init(|| made)
            }
        };
        Ok(compiler.compile(grammar)?)
    }
}
