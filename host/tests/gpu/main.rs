//! Everything that needs a GPU, as one program. It fails where there is none, so a green run means
//! that it ran.

mod driver;
mod memory;
mod support;
