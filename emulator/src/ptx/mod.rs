//! PTX: the text of a module, decoded to instructions that a warp runs.

mod decode;
pub(crate) mod op;
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
    /// Bytes of shared variables of its own.
    pub(crate) static_shared: u32,
    /// `.reqntid`.
    pub(crate) reqntid: Option<[u32; 3]>,
    /// `.reqnctapercluster`.
    pub(crate) cluster: Option<[u32; 3]>,
    /// Its instructions.
    pub(crate) code: Vec<Inst>,
    /// As they were written.
    pub(crate) text: Vec<String>,
    /// How many registers of 32 bits (16 too), 64 bits and predicates.
    pub(crate) registers: [usize; 3],
    /// Constants of 32 bits, 64 bits and predicates.
    pub(crate) constants: (Vec<u32>, Vec<u64>, Vec<bool>),
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
        let mut kernels = Vec::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(".entry ") {
            rest = &rest[at + ".entry ".len()..];
            let open = rest.find('{').ok_or("an entry without a body")?;
            let close = end_of_body(&rest[open..]).ok_or("a body without an end")? + open;
            let (head, body) = (&rest[..open], &rest[open + 1..close]);
            let name = head.split(['(', ' ', '\n']).next().unwrap_or("").to_owned();
            let kernel = decode::kernel(head, body).map_err(|why| format!("{name}: {why}"))?;
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
