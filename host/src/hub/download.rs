//! Fetching a model into the local cache.
//!
//! Only the files that this library reads are fetched: configuration, tokenizer, safetensors; of a
//! repository with GGUF files only, the single GGUF file. Names with a folder in them are skipped.

use super::{HubError, HubName, HubSettings, find_cached};
use hf_hub::api::Progress;
use hf_hub::api::sync::ApiBuilder;
use hf_hub::{Cache, Repo, RepoType};
use std::path::PathBuf;

const FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// What happens while a model is fetched.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum DownloadEvent<'a> {
    /// A file of `bytes` bytes is started.
    File {
        /// Name in the repository.
        name: &'a str,
        /// Its size.
        bytes: u64,
    },
    /// So many more bytes of it have arrived.
    Bytes(u64),
}

/// The folder of a model, downloaded when the cache does not have it.
///
/// `on_event` is called from this thread.
///
/// # Errors
/// [`HubError::Offline`], [`HubError::NoWeights`], or [`HubError::Transfer`] with the client's own
/// error.
pub fn download(
    name: &HubName,
    settings: &HubSettings,
    on_event: &mut dyn FnMut(DownloadEvent<'_>),
) -> Result<PathBuf, HubError> {
    if let Ok(folder) = find_cached(name, settings) {
        return Ok(folder);
    }
    if settings.offline {
        return Err(HubError::Offline { name: name.to_string() });
    }
    let fail = |what: &str, source: Box<dyn std::error::Error + Send + Sync>| HubError::Transfer {
        what: what.to_owned(),
        source,
    };
    let api = ApiBuilder::from_cache(Cache::new(settings.cache.clone()))
        .with_endpoint(settings.endpoint.clone())
        .with_token(settings.token.clone())
        .with_progress(false)
        .with_retries(3)
        .build()
        .map_err(|e| fail(&name.repo, e.into()))?;
    let repo = Repo::with_revision(name.repo.clone(), RepoType::Model, name.revision.clone());
    let repo = api.repo(repo);
    let info = repo.info().map_err(|e| fail(&name.to_string(), e.into()))?;
    let all: Vec<&str> = info.siblings.iter().map(|s| s.rfilename.as_str()).collect();
    let no_weights = HubError::NoWeights { name: name.to_string(), files: all.len() };
    for file in wanted(&all).ok_or(no_weights)? {
        let progress = Forward { on_event, started: false };
        repo.download_with_progress(file, progress).map_err(|e| fail(file, e.into()))?;
    }
    find_cached(name, settings)
}

/// The files to fetch; `None` when there are no weights among them.
fn wanted<'a>(all: &[&'a str]) -> Option<Vec<&'a str>> {
    let flat = || all.iter().copied().filter(|f| !f.contains(['/', '\\']) && !f.starts_with('.'));
    let weights: Vec<&str> = flat().filter(|f| f.ends_with(".safetensors")).collect();
    let gguf: Vec<&str> = flat().filter(|f| f.ends_with(".gguf")).collect();
    match (weights.is_empty(), gguf.as_slice()) {
        (false, _) => Some(flat().filter(|f| FILES.contains(f)).chain(weights).collect()),
        (true, [one]) => Some(vec![one]),
        _ => None,
    }
}

struct Forward<'a> {
    on_event: &'a mut dyn FnMut(DownloadEvent<'_>),
    /// The client announces a file more than once.
    started: bool,
}

impl Progress for Forward<'_> {
    fn init(&mut self, size: usize, filename: &str) {
        if !std::mem::replace(&mut self.started, true) {
            (self.on_event)(DownloadEvent::File { name: filename, bytes: size as u64 });
        }
    }

    fn update(&mut self, size: usize) {
        (self.on_event)(DownloadEvent::Bytes(size as u64));
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_files_are_fetched() {
        let all = [
            "README.md",
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
            "x/config.json",
            "../e.safetensors",
        ];
        assert_eq!(wanted(&all).unwrap(), ["config.json", "model.safetensors"]);
        assert_eq!(wanted(&["a.gguf", "README.md"]).unwrap(), ["a.gguf"]);
        assert!(wanted(&["a.gguf", "b.gguf"]).is_none());
        assert!(wanted(&["pytorch_model.bin"]).is_none());
    }

    #[test]
    fn offline_makes_no_request() {
        let cache = tempfile::tempdir().unwrap();
        let settings = HubSettings {
            cache: cache.path().to_owned(),
            token: None,
            // A request would fail with another error.
            endpoint: "http://127.0.0.1:9".into(),
            offline: true,
        };
        let name = HubName::parse("a/b").unwrap();
        let refused = download(&name, &settings, &mut |_| ());
        assert!(matches!(refused, Err(HubError::Offline { .. })), "{refused:?}");
        let online = HubSettings { offline: false, ..settings };
        let failed = download(&name, &online, &mut |_| ());
        assert!(matches!(failed, Err(HubError::Transfer { .. })), "{failed:?}");
    }
}
