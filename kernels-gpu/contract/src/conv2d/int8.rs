//! Integer and ternary weights on int8 activations. (Stated with its kernels.)
