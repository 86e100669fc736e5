//! Which model a command means.
//!
//! `--model` (or `BITNET_MODEL`) is a path when something exists there, else a hub name. Without it
//! the demo model is taken from the first of these folders that has a `config.json`:
//!
//! 1. `models/demo` in the current folder (a clone),
//! 2. `models/demo` beside the program (a bundle),
//! 3. `share/bitnet/models/demo` beside the folder of the program (an installation),
//! 4. `models/demo` in a folder above the program (`target/release/bitnet` run from elsewhere).

use crate::failure::Failure;
use crate::output::Output;
use bitnet_gpu::hub::{self, HubName, HubSettings};
use std::path::{Path, PathBuf};

const DEMO: &str = "models/demo";

/// The folder or file of the model.
pub(crate) fn model(given: Option<&str>, output: &Output) -> Result<PathBuf, Failure> {
    match given {
        Some(name) => named(name, &HubSettings::from_env(), output),
        None => demo_here(),
    }
}

/// The demo model as seen from here.
pub(crate) fn demo_here() -> Result<PathBuf, Failure> {
    let exe = std::env::current_exe().and_then(std::fs::canonicalize).ok();
    demo(Path::new(""), exe.as_deref())
}

fn named(name: &str, settings: &HubSettings, output: &Output) -> Result<PathBuf, Failure> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(path.to_owned());
    }
    let missing = |because: String| {
        Failure::new(
            format!("there is no model at {name:?}"),
            because,
            "give a folder with config.json and weights, a .gguf file, or ORG/NAME",
        )
    };
    let Ok(hub_name) = HubName::parse(name) else {
        return Err(missing("nothing exists there, and it is not a hub name".into()));
    };
    match fetch(&hub_name, settings, output) {
        // Someone who mistyped a path must not be told about the hub alone.
        Err(Failure::Failed { what, because, advice, .. }) => Err(Failure::Failed {
            what: format!("there is no file or folder {name:?}, and as a hub name it failed"),
            because: std::iter::once(what).chain(because).collect(),
            advice,
            usage: false,
        }),
        other => other,
    }
}

#[cfg(not(feature = "hub"))]
fn fetch(name: &HubName, settings: &HubSettings, _: &Output) -> Result<PathBuf, Failure> {
    Ok(hub::find_cached(name, settings)?)
}

#[cfg(feature = "hub")]
fn fetch(name: &HubName, settings: &HubSettings, output: &Output) -> Result<PathBuf, Failure> {
    use bitnet_gpu::hub::DownloadEvent;
    let mut progress = crate::progress::Progress::new(output);
    let (mut file, mut done, mut total) = (String::new(), 0, 0);
    let folder = hub::download(name, settings, &mut |event| {
        match event {
            DownloadEvent::File { name, bytes } => (file, done, total) = (name.into(), 0, bytes),
            DownloadEvent::Bytes(bytes) => done += bytes,
            _ => {}
        }
        progress.set(&file, done, total);
    })?;
    Ok(folder)
}

fn demo(current: &Path, exe: Option<&Path>) -> Result<PathBuf, Failure> {
    let beside = exe.and_then(Path::parent);
    let mut places = vec![current.join(DEMO)];
    if let Some(folder) = beside {
        places.push(folder.join(DEMO));
        places.extend(folder.parent().map(|f| f.join("share/bitnet").join(DEMO)));
        places.extend(folder.ancestors().skip(1).map(|f| f.join(DEMO)));
    }
    if let Some(found) = places.iter().find(|p| p.join("config.json").is_file()) {
        return Ok(found.clone());
    }
    let looked: Vec<String> = places.iter().take(3).map(|p| p.display().to_string()).collect();
    Err(Failure::new(
        "no model was given, and the demo model is not here",
        format!("looked for config.json in {} and in folders above the program", looked.join(", ")),
        "bitnet generate --model PATH|ORG/NAME, or run it in a clone of the repository",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(root: &Path, folder: &str) -> PathBuf {
        let path = root.join(folder).join(DEMO);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("config.json"), "{}").unwrap();
        path
    }

    #[test]
    fn the_demo_model_is_searched_in_the_documented_order() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let exe = root.join("clone/target/release/bitnet");
        let current = root.join("work");
        assert!(demo(&current, Some(&exe)).is_err());

        // Each new place wins over the ones before it.
        let above = place(root, "clone");
        assert_eq!(demo(&current, Some(&exe)).unwrap(), above);
        let installed = place(root, "clone/target/share/bitnet");
        assert_eq!(demo(&current, Some(&exe)).unwrap(), installed);
        let bundle = place(root, "clone/target/release");
        assert_eq!(demo(&current, Some(&exe)).unwrap(), bundle);
        let clone = place(root, "work");
        assert_eq!(demo(&current, Some(&exe)).unwrap(), clone);
    }

    #[test]
    fn a_path_wins_over_a_hub_name_and_a_wrong_one_names_both() {
        let root = tempfile::tempdir().unwrap();
        let settings = HubSettings {
            cache: root.path().join("cache"),
            token: None,
            endpoint: String::new(),
            offline: true,
        };
        let output = Output::new(false, true);
        let path = root.path().to_str().unwrap();
        assert_eq!(named(path, &settings, &output).unwrap(), root.path());
        match named("someone/nothing", &settings, &output) {
            Err(Failure::Failed { what, because, .. }) => {
                assert!(what.contains("no file or folder"), "{what}");
                assert!(because[0].contains("cache"), "{because:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}
