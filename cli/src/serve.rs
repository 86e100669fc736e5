//! `bitnet serve`: an HTTP server with the completions of the OpenAI API.

use crate::args::{EngineArgs, SamplingArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::{engine, interrupt, locate};
use bitnet_gpu::device_choice::Backend;
use bitnet_gpu::session::{Lookup, SessionBuilder, SessionError};
use bitnet_server::Settings;
use clap::Args;
use clap::builder::FalseyValueParser;
use serde::Serialize;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Address to listen at; other machines reach one that is not 127.0.0.1, which needs a key
    #[arg(long, help_heading = "Server", env = "BITNET_HOST", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen at; 0 takes a free one
    #[arg(long, help_heading = "Server", env = "BITNET_PORT", default_value_t = 8080)]
    port: u16,
    /// Key that requests have to bring, as Authorization: Bearer KEY; better given as BITNET_API_KEY, which other users of the
    /// machine do not see
    #[arg(long, help_heading = "Server", env = "BITNET_API_KEY", value_name = "KEY")]
    api_key: Option<String>,
    /// Name of the model in requests [default: the end of --model]
    #[arg(long, help_heading = "Server", env = "BITNET_SERVED_NAME", value_name = "NAME")]
    served_name: Option<String>,
    /// Most requests that run at once, on each device
    #[arg(long, help_heading = "Server", env = "BITNET_BATCH", value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// Tokens of prompts that run with a step: the fewer, the less a long prompt holds up the texts beside it, and the later
    /// its own begins
    #[arg(
        long,
        help_heading = "Server",
        env = "BITNET_PROMPT_SHARE",
        value_name = "TOKENS",
        default_value_t = 768
    )]
    prompt_share: u32,
    /// Compute every prompt from its beginning, also where an earlier text began alike: who can time answers cannot find out then what
    /// others have asked
    #[arg(long, help_heading = "Server", env = "BITNET_NO_PREFIX_CACHE", value_parser = FalseyValueParser::new())]
    no_prefix_cache: bool,
    /// Most requests that wait for a place
    #[arg(
        long,
        help_heading = "Server",
        env = "BITNET_QUEUE",
        value_name = "N",
        default_value_t = 256
    )]
    queue: u16,
    /// Longest wait for a place
    #[arg(
        long,
        help_heading = "Server",
        env = "BITNET_QUEUE_SECONDS",
        value_name = "SECONDS",
        default_value_t = 60
    )]
    queue_seconds: u32,
    /// Be ready sooner, and let the first requests wait for kernels instead
    #[arg(long, help_heading = "Server", env = "BITNET_NO_WARM_UP", value_parser = FalseyValueParser::new())]
    no_warm_up: bool,
    #[command(flatten)]
    engine: EngineArgs,
    /// What a request gets that does not say otherwise
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// What `--json` prints when the server is ready.
#[derive(Serialize)]
struct Document<'a> {
    model: &'a str,
    device: &'a str,
    address: SocketAddr,
    max_batch: usize,
    context: usize,
}

pub(crate) fn run(args: ServeArgs, output: &Output) -> Result<(), Failure> {
    let defaults = args.sampling.params(0);
    defaults.validate()?;
    if args.api_key.as_deref().is_some_and(|key| key.trim().is_empty()) {
        let (what, because) = ("the API key is empty", "every request would bring it");
        return Err(Failure::new(what, because, "give --api-key some text").usage());
    }
    if !args.host.is_loopback() && args.api_key.is_none() {
        return Err(Failure::new(
            format!("{} is reached from other machines, and there is no key", args.host),
            "anybody there could use the server",
            "give --api-key KEY (BITNET_API_KEY), or listen at 127.0.0.1",
        )
        .usage());
    }
    if args.engine.profile.is_some() {
        let (what, because) = ("a server writes no profile", "it would grow without an end");
        return Err(
            Failure::new(what, because, "use --profile with bitnet generate --prompts").usage()
        );
    }
    let path = locate::model(args.engine.model.as_deref(), output)?;
    // Before the model is loaded, which takes longer.
    let asked = SocketAddr::new(args.host, args.port);
    let unavailable = |error: std::io::Error| {
        let what = format!("cannot listen at {asked}");
        Failure::new(what, error.to_string(), "choose another --port, or --port 0 for a free one")
    };
    let listener = TcpListener::bind(asked).map_err(unavailable)?;
    let address = listener.local_addr().map_err(unavailable)?;
    interrupt::install();
    let batch = |builder: SessionBuilder| {
        builder
            .max_batch(args.batch.into())
            .prompt_share(args.prompt_share as usize)
            .prefix_cache(!args.no_prefix_cache)
    };
    let mut engine = engine::open_batch(&path, &args.engine, Lookup::Auto, batch, output)?;
    let devices = args.engine.device.resolve().map_err(SessionError::from)?;
    // A CPU has nothing to compile.
    if !args.no_warm_up && devices.iter().any(|device| *device != Backend::Cpu) {
        engine.warm_up()?;
    }
    let model = args.served_name.unwrap_or_else(|| name_of(args.engine.model.as_deref(), &path));
    let (device, max_batch) = (engine.device(), engine.max_batch());
    if output.json {
        let (model, device, context) = (&*model, &*device, engine.context());
        output.document(&Document { model, device, address, max_batch, context })?;
    } else {
        output.note(&format!("{model} on {device}, up to {max_batch} texts at once"));
        output.note(&format!("http://{address}/v1 speaks the OpenAI API; Ctrl-C ends the server"));
    }
    let settings = Settings {
        defaults,
        seed: args.sampling.seed,
        key: args.api_key,
        queue: args.queue.into(),
        patience: Duration::from_secs(args.queue_seconds.into()),
        ..Settings::new(model)
    };
    bitnet_server::serve(engine, listener, settings, interrupt::asked).map_err(|error| {
        Failure::new(
            "the server ended",
            error.to_string(),
            "start it again; bitnet doctor checks the device",
        )
    })
}

/// What the model was asked for by, without the folders in front.
fn name_of(given: Option<&str>, path: &Path) -> String {
    let whole = Path::new(given.unwrap_or_default());
    let end = whole.file_name().or_else(|| path.file_name());
    end.map_or_else(|| "bitnet".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_by_its_end() {
        let demo = Path::new("models/demo");
        assert_eq!(name_of(None, demo), "demo");
        assert_eq!(name_of(Some("a/b/"), demo), "b");
        assert_eq!(name_of(Some("microsoft/bitnet-b1.58-2B-4T"), demo), "bitnet-b1.58-2B-4T");
        assert_eq!(name_of(Some("x.gguf"), demo), "x.gguf");
        assert_eq!(name_of(Some(".."), Path::new("..")), "bitnet");
    }
}
