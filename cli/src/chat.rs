//! `bitnet chat`: a conversation, one line a turn.
//!
//! On a terminal there is a prompt; otherwise nothing but the answers is printed. The commands below
//! work in both cases. The whole conversation is sent each time; the session keeps what it has
//! already computed of it. Ctrl-C ends an answer, or, at the prompt, the program.

use crate::args::{EngineArgs, SamplingArgs};
use crate::engine::{self, Stats};
use crate::failure::Failure;
use crate::generate::{MAX_PROMPT_BYTES, report, seed_from_clock, stream};
use crate::output::Output;
use crate::{interrupt, locate};
use bitnet_gpu::session::{Finish, Lookup, Session};
use bitnet_gpu::text::{Message, SamplingParams};
use clap::Args;
use serde::Serialize;
use std::io::{self, BufRead, IsTerminal, Read, Write};

const HELP: &str = "/reset  forget the conversation\n/quit   leave (or Ctrl-D)\n/help   this text";

#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct ChatArgs {
    /// System message in front of the conversation
    #[arg(long, env = "BITNET_SYSTEM", value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// What `--json` prints for each turn, on one line.
#[derive(Serialize)]
struct Turn<'a> {
    text: &'a str,
    finish: Finish,
    stats: Stats,
}

pub(crate) fn run(args: ChatArgs, output: &Output) -> Result<(), Failure> {
    let params = args.sampling.params(seed_from_clock());
    params.validate()?;
    let path = locate::model(args.engine.model.as_deref(), output)?;
    interrupt::install();
    let mut session = engine::open(&path, &args.engine, Lookup::Auto, output)?;
    if let Some(file) = &args.engine.profile {
        engine::expect_profile(session.profile()?, &session.device(), file)?;
    }
    // A model without a template is refused before the first turn. What the library says to try is not of this command.
    if let Err(error) = session.template() {
        return Err(Failure::from(error).advise(
            "choose a model with a chat template (--model), or continue plain text with bitnet generate",
        ));
    }
    let start: Vec<Message> = args.system.iter().map(|s| Message::new("system", s)).collect();
    let mut talk = Talk { messages: start.clone(), params };
    let interactive = io::stdin().is_terminal() && !output.json;
    if interactive {
        output.note(HELP);
    }
    while let Some(line) = read_turn(interactive)? {
        match line.trim() {
            "" => continue,
            "/quit" => break,
            "/help" => output.note(HELP),
            "/reset" => talk.messages.clone_from(&start),
            text => {
                let before = talk.messages.len();
                if let Err(failure) = talk.answer(text, &mut session, output) {
                    if !interactive || matches!(failure, Failure::ClosedPipe) {
                        return Err(failure);
                    }
                    // The conversation goes on as if the turn had not been said.
                    talk.messages.truncate(before);
                    failure.report(output);
                }
            }
        }
    }
    if let Some(file) = &args.engine.profile {
        engine::write_profile(session.profile()?, file, output)?;
    }
    Ok(())
}

struct Talk {
    messages: Vec<Message>,
    params: SamplingParams,
}

impl Talk {
    fn answer(
        &mut self,
        text: &str,
        session: &mut Session,
        output: &Output,
    ) -> Result<(), Failure> {
        self.messages.push(Message::new("user", text));
        let ids = session.encode_chat(&self.messages)?;
        interrupt::reset();
        let answer = stream(session, &ids, &self.params, output)?;
        let stats = Stats::of(session, &answer.stats);
        if output.json {
            let turn = Turn { text: &answer.text, finish: answer.finish, stats };
            let line = serde_json::to_string(&turn).map_err(io::Error::from)?;
            output.line(&line)?;
        } else {
            output.line("")?;
            report(&stats, &self.params, output);
        }
        self.messages.push(Message::new("assistant", answer.text));
        Ok(())
    }
}

/// The next line; `None` at the end of the input.
fn read_turn(interactive: bool) -> Result<Option<String>, Failure> {
    if interactive {
        let mut err = io::stderr().lock();
        let _ = write!(err, "> ").and_then(|()| err.flush());
    }
    let mut line = String::new();
    let most = MAX_PROMPT_BYTES + 1;
    let read = interrupt::while_idle(|| io::stdin().lock().take(most).read_line(&mut line));
    let advice = "send UTF-8 text, one turn a line";
    let refuse = |because: String| Failure::new("cannot read standard input", because, advice);
    match read {
        Err(error) => Err(refuse(error.to_string())),
        Ok(read) if read as u64 == most => {
            Err(refuse(format!("a turn has more than {MAX_PROMPT_BYTES} bytes")))
        }
        Ok(read) => Ok((read > 0).then_some(line)),
    }
}
