//! PTX: the text of a module, decoded to instructions that a warp runs.

mod decode;
pub(crate) mod op;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;

use op::Inst;

/// The PTX of a module.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its entries.
    pub(crate) kernels: Vec<Arc<Kernel>>,
}

/// An entry.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Its name.
    pub(crate) name: String,
    /// Bytes of all parameters.
    pub(crate) param_bytes: usize,
    /// Offset and bytes of each.
    pub(crate) params: Vec<(usize, usize)>,
    /// `.reqntid`.
    pub(crate) reqntid: Option<[u32; 3]>,
    /// `.reqnctapercluster`.
    pub(crate) cluster: Option<[u32; 3]>,
    /// Its instructions.
    pub(crate) code: Vec<Inst>,
    /// As they were written.
    pub(crate) text: Vec<String>,
    /// How many registers of 32 bits (of 16 too), of 64 bits, and predicates.
    pub(crate) registers: [usize; 3],
    /// Constants of 32 bits and 64 bits, for each lane of a warp.
    pub(crate) constants: (Vec<[u32; 32]>, Vec<[u64; 32]>),
    /// Whether it has a `griddepcontrol.wait`.
    pub(crate) waits: bool,
}

impl Program {
    /// Reads a module.
    ///
    /// # Errors
    /// What it cannot read, with the text at that place.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text::without_comments(text);
        // `.extern .shared .align 16 .b8 name[];`: memory of a size that a launch says.
        let shared: Vec<String> = text
            .split(".extern .shared ")
            .skip(1)
            .filter_map(|rest| Some(rest.split_once('[')?.0.split_whitespace().last()?.to_owned()))
            .collect();
        let mut kernels = Vec::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(".entry ") {
            rest = &rest[at + ".entry ".len()..];
            let open = rest.find('{').ok_or("an entry without a body")?;
            let close = end_of_body(&rest[open..]).ok_or("a body without an end")? + open;
            let (head, body) = (&rest[..open], &rest[open + 1..close]);
            let kernel = decode::kernel(head, body, &shared)
                .map_err(|why| format!("{}: {why}", decode::name(head)))?;
            kernels.push(Arc::new(kernel));
            rest = &rest[close..];
        }
        Ok(Self { kernels })
    }
}

/// Where the brace that closes the first one stands.
fn end_of_body(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}
