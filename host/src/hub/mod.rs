//! Models by their hub name (`org/name`, or `org/name@revision`).
//!
//! Looking into the local cache needs no feature and never touches a network; the layout is that of
//! the hub's own tools (`models--org--name/refs/REVISION` names a folder under `snapshots`).
//! Downloading is behind the cargo feature `hub`, happens only when [`download`] is called, and is
//! refused when `HF_HUB_OFFLINE` is set. Honoured: `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`,
//! `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`.

#[cfg(feature = "hub")]
mod download;

#[cfg(feature = "hub")]
pub use download::{DownloadEvent, download};

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Why a hub name could not be turned into a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Not of the form `org/name` or `org/name@revision`.
    #[error("{name:?} is not a hub name")]
    BadName {
        /// The name given.
        name: String,
    },
    /// The cache has no complete copy.
    #[error("{name} is not in the local cache {}", cache.display())]
    NotCached {
        /// The name asked for.
        name: String,
        /// The cache looked in.
        cache: PathBuf,
    },
    /// `HF_HUB_OFFLINE` forbids the download.
    #[error("{name} is not in the local cache, and HF_HUB_OFFLINE is set")]
    Offline {
        /// The name asked for.
        name: String,
    },
    /// The repository has no files that this library reads.
    #[error("{name} has no safetensors or GGUF weights among its {files} files")]
    NoWeights {
        /// The name asked for.
        name: String,
        /// Files of the repository.
        files: usize,
    },
    /// The hub refused, or could not be reached.
    #[error("cannot download {what}")]
    Transfer {
        /// The model or file.
        what: String,
        /// What the client said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl HubError {
    /// One thing to try, in the imperative.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::BadName { .. } => {
                "give a folder, a file, or a name such as microsoft/bitnet-b1.58-2B-4T"
            }
            Self::NotCached { .. } => {
                "download it first (`hf download ORG/NAME`), or use a build with the feature `hub`"
            }
            Self::Offline { .. } => "unset HF_HUB_OFFLINE, or copy the model into the cache",
            Self::NoWeights { .. } => "choose the repository with the safetensors or GGUF files",
            Self::Transfer { .. } => "check the name, HF_TOKEN for gated models, and the network",
        }
    }
}

/// What the environment says about the hub.
#[derive(Clone, PartialEq, Eq)]
pub struct HubSettings {
    /// Folder with the `models--org--name` folders.
    pub cache: PathBuf,
    /// Sent only to the endpoint.
    pub token: Option<String>,
    /// Base address of the hub.
    pub endpoint: String,
    /// Whether any network use is forbidden.
    pub offline: bool,
}

impl std::fmt::Debug for HubSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token must not reach a log.
        let token = self.token.as_ref().map(|_| "(set)");
        f.debug_struct("HubSettings")
            .field("cache", &self.cache)
            .field("token", &token)
            .field("endpoint", &self.endpoint)
            .field("offline", &self.offline)
            .finish()
    }
}

impl HubSettings {
    /// Reads the environment of the process.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// Reads variables through `var`; `None` stands for unset.
    pub fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name| var(name).map(PathBuf::from);
        let text = |name| var(name).and_then(|v| v.into_string().ok());
        let home = path("HF_HOME").unwrap_or_else(|| {
            let user = path("HOME").or_else(|| path("USERPROFILE")).unwrap_or_default();
            path("XDG_CACHE_HOME").unwrap_or_else(|| user.join(".cache")).join("huggingface")
        });
        let cache = path("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub"));
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let token = text("HF_TOKEN").or_else(|| {
            // A token has some dozens of bytes; a larger file is something else.
            let small = std::fs::metadata(&token_file).is_ok_and(|m| m.is_file() && m.len() < 4096);
            small.then(|| std::fs::read_to_string(&token_file).ok()).flatten()
        });
        let token = token.map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        let offline = text("HF_HUB_OFFLINE").is_some_and(|v| {
            matches!(v.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
        });
        Self { cache, token, endpoint: endpoint.trim_end_matches('/').to_owned(), offline }
    }
}

/// A name of the form `org/name[@revision]`, checked so that it cannot leave the cache folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// `org/name`.
    pub repo: String,
    /// Branch, tag or commit; `main` when not given.
    pub revision: String,
}

impl HubName {
    /// Parses a name.
    ///
    /// # Errors
    /// [`HubError::BadName`].
    pub fn parse(name: &str) -> Result<Self, HubError> {
        let (repo, revision) = name.split_once('@').unwrap_or((name, "main"));
        let plain = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty()
                && part.len() <= 96
                && part.chars().all(known)
                && !part.starts_with(['.', '-'])
                && !part.contains("..")
        };
        let parts: Vec<&str> = repo.split('/').collect();
        if parts.len() != 2 || !parts.iter().all(|p| plain(p)) || !revision.split('/').all(plain) {
            return Err(HubError::BadName { name: name.to_owned() });
        }
        Ok(Self { repo: repo.to_owned(), revision: revision.to_owned() })
    }
}

impl std::fmt::Display for HubName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.revision.as_str() {
            "main" => f.write_str(&self.repo),
            revision => write!(f, "{}@{revision}", self.repo),
        }
    }
}

/// The folder of a model in the local cache.
///
/// # Errors
/// [`HubError::NotCached`] when there is no snapshot of that revision with weights in it.
pub fn find_cached(name: &HubName, settings: &HubSettings) -> Result<PathBuf, HubError> {
    let repo = settings.cache.join(format!("models--{}", name.repo.replace('/', "--")));
    let named = std::fs::read_to_string(repo.join("refs").join(&name.revision)).ok();
    let commit = named.as_deref().map_or(name.revision.as_str(), str::trim);
    // The reference is a file's content: only a commit hash may become part of a path.
    let is_hash = (7..=64).contains(&commit.len()) && commit.bytes().all(|b| b.is_ascii_hexdigit());
    let folder = repo.join("snapshots").join(commit);
    if is_hash && has_weights(&folder) {
        return Ok(folder);
    }
    Err(HubError::NotCached { name: name.to_string(), cache: settings.cache.clone() })
}

/// Whether a file of the folder is one this library reads weights from, with nothing missing.
fn has_weights(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    let names: Vec<String> =
        entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    // A sharded model is complete when as many shards are there as their names say.
    let shards = names.iter().filter(|n| n.contains("-of-") && n.ends_with(".safetensors"));
    if let Some(total) = shards
        .clone()
        .next()
        .and_then(|n| n.strip_suffix(".safetensors")?.rsplit_once("-of-")?.1.parse::<usize>().ok())
    {
        return shards.count() == total;
    }
    let present = |name: &String| folder.join(name).exists();
    names.iter().filter(|n| n.ends_with(".safetensors") || n.ends_with(".gguf")).any(present)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(vars: &[(&str, &str)]) -> HubSettings {
        let vars: Vec<(String, OsString)> =
            vars.iter().map(|(k, v)| (k.to_string(), v.into())).collect();
        HubSettings::from_vars(move |name| {
            vars.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn names_are_checked() {
        let name = HubName::parse("microsoft/bitnet-b1.58-2B-4T").unwrap();
        assert_eq!(
            (name.repo.as_str(), name.revision.as_str()),
            ("microsoft/bitnet-b1.58-2B-4T", "main")
        );
        assert_eq!(HubName::parse("a/b@refs/pr/1").unwrap().revision, "refs/pr/1");
        let bad = [
            "",
            "a",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            "a/b@",
            "a/b@../../x",
            "a/b@/etc",
            "a b/c",
            "-a/b",
            "a/b\0",
        ];
        for name in bad {
            assert!(matches!(HubName::parse(name), Err(HubError::BadName { .. })), "{name:?}");
        }
    }

    #[test]
    fn the_cache_folder_follows_the_variables_in_order() {
        let all =
            [("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/u")];
        for (from, cache) in
            [(0, "/c"), (1, "/h/hub"), (2, "/x/huggingface/hub"), (3, "/u/.cache/huggingface/hub")]
        {
            assert_eq!(settings(&all[from..]).cache, Path::new(cache));
        }
    }

    #[test]
    fn offline_is_read_as_the_hub_tools_read_it() {
        for (value, offline) in
            [("1", true), ("on", true), ("Yes", true), ("TRUE", true), ("0", false), ("no", false)]
        {
            assert_eq!(settings(&[("HF_HUB_OFFLINE", value)]).offline, offline, "{value}");
        }
        assert!(!settings(&[]).offline);
    }

    #[test]
    fn a_token_is_never_printed() {
        let settings = settings(&[("HF_TOKEN", " hf_secret\n")]);
        assert_eq!(settings.token.as_deref(), Some("hf_secret"));
        assert!(!format!("{settings:?}").contains("secret"));
    }

    #[test]
    fn a_snapshot_is_found_by_branch_and_by_commit_when_it_is_complete() {
        let cache = tempfile::tempdir().unwrap();
        let settings = settings(&[("HF_HUB_CACHE", cache.path().to_str().unwrap())]);
        let repo = cache.path().join("models--a--b");
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let snapshot = repo.join("snapshots").join(commit);
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(repo.join("refs")).unwrap();
        std::fs::write(repo.join("refs/main"), format!("{commit}\n")).unwrap();
        let find = |name: &str| find_cached(&HubName::parse(name).unwrap(), &settings);
        assert!(matches!(find("a/b"), Err(HubError::NotCached { .. })), "nothing is in it yet");

        std::fs::write(snapshot.join("model-00001-of-00002.safetensors"), b"").unwrap();
        assert!(find("a/b").is_err(), "a shard is missing");
        std::fs::write(snapshot.join("model-00002-of-00002.safetensors"), b"").unwrap();
        assert_eq!(find("a/b").unwrap(), snapshot);
        assert_eq!(find(&format!("a/b@{commit}")).unwrap(), snapshot);
        assert!(find("a/b@other").is_err());

        std::fs::write(repo.join("refs/main"), "../../../../etc").unwrap();
        assert!(find("a/b").is_err(), "a reference may not leave the cache");
    }
}
