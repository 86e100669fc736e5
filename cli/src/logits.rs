//! `--logits FILE`: what every generated token was chosen from, as safetensors.
//!
//! | tensor          | element | shape        | meaning                                          |
//! |-----------------|---------|--------------|--------------------------------------------------|
//! | `prompt_ids`    | I32     | `[P]`        | the prompt, BOS included                         |
//! | `generated_ids` | I32     | `[G]`        | the tokens that were picked                      |
//! | `logits`        | F32     | `[G, vocab]` | row `i` is what `generated_ids[i]` was picked from |
//!
//! The logits come from one more pass over prompt and text. They are those of the generation, bit
//! for bit, because the arithmetic does not depend on how tokens are grouped.

use crate::failure::Failure;
use bitnet_gpu::session::Session;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use std::fs::{File, Permissions};
use std::path::Path;

/// A file that can be written, which is found out before the text is generated.
pub(crate) struct Place<'a> {
    file: &'a Path,
    /// Those that a new file gets here. The writer makes a temporary one that nobody else may read.
    permissions: Permissions,
}

impl<'a> Place<'a> {
    /// Opens `file`, and makes it where it is not there.
    pub(crate) fn new(file: &'a Path) -> Result<Self, Failure> {
        // The writer puts a new file in its place: a device or a pipe would be gone.
        if std::fs::metadata(file).is_ok_and(|found| !found.is_file()) {
            return Err(failed(file, "this is not a regular file".into()));
        }
        let opened = File::options().write(true).create(true).truncate(false).open(file);
        let found = opened.and_then(|opened| opened.metadata());
        let permissions = found.map_err(|error| failed(file, error.to_string()))?.permissions();
        Ok(Self { file, permissions })
    }

    /// Writes the logits of a text that was generated from `prompt`.
    pub(crate) fn write(
        self,
        session: &mut Session,
        prompt: &[u32],
        generated: &[u32],
    ) -> Result<(), Failure> {
        // The last token was picked, not processed: its own logits are of no token.
        let seen = generated.len().saturating_sub(1);
        let tokens: Vec<u32> = prompt.iter().chain(&generated[..seen]).copied().collect();
        let mut logits = Vec::new();
        let mut position = 0;
        session.logits(&tokens, |row| {
            position += 1;
            if position >= prompt.len() {
                logits.extend(row.iter().flat_map(|x| x.to_le_bytes()));
            }
        })?;
        let ids = |ids: &[u32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        let (prompt_ids, generated_ids) = (ids(prompt), ids(generated));
        let vocab = session.config().vocab_size;
        let tensors = [
            ("prompt_ids", Dtype::I32, vec![prompt.len()], &prompt_ids),
            ("generated_ids", Dtype::I32, vec![generated.len()], &generated_ids),
            ("logits", Dtype::F32, vec![generated.len(), vocab], &logits),
        ];
        let views = tensors
            .into_iter()
            .map(|(name, dtype, shape, data)| Ok((name, TensorView::new(dtype, shape, data)?)))
            .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
            .map_err(|error| failed(self.file, error.to_string()))?;
        serialize_to_file(views, None, self.file)
            .map_err(|error| failed(self.file, error.to_string()))?;
        std::fs::set_permissions(self.file, self.permissions)
            .map_err(|error| failed(self.file, error.to_string()))
    }
}

fn failed(file: &Path, error: String) -> Failure {
    Failure::new(
        format!("cannot write the logits to {}", file.display()),
        error,
        "give --logits a file in a folder that exists, with room for 4 bytes a logit",
    )
}
