//! Decoded instructions.

/// A register of its class, or a constant of the kernel ([`R::CONSTANT`] set).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct R(pub u32);

impl R {
    /// Set in the number of a constant.
    pub(crate) const CONSTANT: u32 = 1 << 31;
    /// What `_` stands for.
    pub(crate) const SINK: R = R(u32::MAX);
}

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    ClusterCtaRank,
    ClusterNctaRank,
    ClusterId(u8),
    NclusterId(u8),
    LaneId,
}

/// On 32-bit registers, or on 16-bit ones where the result is cut (`narrow`). Named as in PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum K32 {
    Add,
    Sub,
    Mul,
    Mad,
    MulHiU,
    MulHiU16,
    Div,
    Rem,
    And,
    Or,
    Xor,
    Not,
    Neg,
    Shl,
    ShrU,
    ShrS,
    MinU,
    MaxU,
    MinS,
    MaxS,
    Popc,
    Clz,
    BfindShift,
    BfeU,
    BfeS,
    Prmt,
    ShfLeft,
    ShfRight,
    Dp4aSS,
    Dp4aUS,
    AddF,
    SubF,
    MulF,
    FmaF,
    DivF,
    RcpF,
    SqrtF,
    AbsF,
    NegF,
    MinF,
    MaxF,
    MaxNanF,
    RcpApprox,
    RsqrtApprox,
    Ex2Approx,
    MaxNanBf16x2,
    FmaBf16x2,
    FmaReluBf16x2,
    MaxNanF16x2,
    PackBf16,
    PackF16,
    Tf32,
    HalfToF32,
    F32ToHalf,
    F32FromU,
    F32FromU16,
    F32FromS,
    F32ToU,
    SignExtend8,
    Low16,
}

/// On 64-bit registers; shift counts and field positions are 32-bit registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum K64 {
    Add,
    Sub,
    Mul,
    Mad,
    MulHiU,
    Div,
    And,
    Or,
    Xor,
    Not,
    Neg,
    MinU,
    MaxU,
    Low32U,
    Low32S,
}

/// How two numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Eq,
    Ne,
    LtU,
    LeU,
    GtU,
    GeU,
    LtS,
    LeS,
    GtS,
    GeS,
    EqF,
    NeF,
    LtF,
    LeF,
    GtF,
    GeF,
    EquF,
    NeuF,
    LtuF,
    LeuF,
    GtuF,
    GeuF,
    NanF,
    NumF,
}

/// On predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KP {
    And,
    Or,
    Xor,
    Not,
}

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Cluster,
    Param,
}

/// An address: a register of 32 or 64 bits, or none, and an offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    /// The register.
    pub(crate) base: Option<(R, bool)>,
    /// Added to it.
    pub(crate) offset: i64,
}

/// How wide a loaded element is, and how it is extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    U8,
    S8,
    /// Into a register of 16 bits.
    S8Half,
    U16,
    S16,
    B32,
    S32,
    B64,
}

impl Element {
    /// Bytes.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::S8 | Self::S8Half => 1,
            Self::U16 | Self::S16 => 2,
            Self::B32 | Self::S32 => 4,
            Self::B64 => 8,
        }
    }
}

/// How a shuffle finds its source lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Bfly,
    Idx,
    Up,
    Down,
}

/// What an instruction does.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// A hint, a fence, or what sequential execution makes one.
    Nothing,
    Mov32 {
        d: R,
        a: R,
    },
    Mov64 {
        d: R,
        a: R,
    },
    MovP {
        d: R,
        a: R,
    },
    Special {
        d: R,
        what: Special,
    },
    /// Ticks.
    Clock {
        d: R,
    },
    /// `mov.b32 {lo, hi}, a` of 16-bit halves.
    Split32 {
        lo: R,
        hi: R,
        a: R,
    },
    Join32 {
        d: R,
        lo: R,
        hi: R,
    },
    Split64 {
        lo: R,
        hi: R,
        a: R,
    },
    Join64 {
        d: R,
        lo: R,
        hi: R,
    },
    Alu32 {
        k: K32,
        narrow: bool,
        d: R,
        a: R,
        b: R,
        c: R,
    },
    Alu64 {
        k: K64,
        d: R,
        a: R,
        b: R,
        c: R,
    },
    /// Shifts: left, or right, with the sign of the first where it is `signed`.
    Shift64 {
        left: bool,
        signed: bool,
        d: R,
        a: R,
        b: R,
    },
    BfeU64 {
        d: R,
        a: R,
        b: R,
        c: R,
    },
    /// Two 32-bit numbers to one of 64.
    MulWide {
        signed: bool,
        d: R,
        a: R,
        b: R,
    },
    /// 32 to 64 bits.
    Widen {
        signed: bool,
        d: R,
        a: R,
    },
    /// The low half of 64 bits.
    Narrow {
        half: bool,
        d: R,
        a: R,
    },
    /// `cvt.rn.f32.u64`, `.s64`.
    F32From64 {
        signed: bool,
        d: R,
        a: R,
    },
    /// `cvt.rzi.u64.f32`.
    U64FromF32 {
        d: R,
        a: R,
    },
    SetP32 {
        how: Compare,
        d: R,
        a: R,
        b: R,
    },
    SetP64 {
        how: Compare,
        d: R,
        a: R,
        b: R,
    },
    Logic {
        k: KP,
        d: R,
        a: R,
        b: R,
    },
    Select32 {
        d: R,
        a: R,
        b: R,
        p: R,
    },
    Select64 {
        d: R,
        a: R,
        b: R,
        p: R,
    },
    /// The address of shared memory as a generic one.
    GenericShared {
        d: R,
        a: R,
    },
    MapRank {
        d: R,
        a: R,
        rank: R,
    },
    /// `wide`: into 64-bit registers, whatever the element. `polls`: what others write meanwhile.
    Load {
        space: Space,
        element: Element,
        wide: bool,
        polls: bool,
        d: [R; 4],
        n: u8,
        at: Address,
    },
    /// The generic address of a parameter.
    ParamAddress {
        d: R,
        offset: u32,
    },
    /// `shown`: to those who poll.
    Store {
        space: Space,
        element: Element,
        shown: bool,
        s: [R; 4],
        n: u8,
        at: Address,
    },
    /// `atom.add.u32`.
    AtomAdd {
        shared: bool,
        d: R,
        at: Address,
        a: R,
    },
    /// `red.global.max.u64`.
    RedMax64 {
        at: Address,
        a: R,
    },
    Shfl {
        how: Shuffle,
        d: R,
        a: R,
        b: R,
        c: R,
        members: R,
    },
    VoteAny {
        d: R,
        a: R,
        members: R,
    },
    Ballot {
        d: R,
        a: R,
        members: R,
    },
    ReduxAdd {
        d: R,
        a: R,
        members: R,
    },
    ReduxMax {
        d: R,
        a: R,
        members: R,
    },
    Barrier {
        id: R,
        threads: Option<R>,
        /// `bar.arrive` does not.
        waits: bool,
    },
    WarpBarrier {
        members: R,
    },
    /// `fence.mbarrier_init`: the next arrival lets others know, also a relaxed one.
    InitFence,
    /// `fence.proxy.async`
    ProxyFence,
    /// `relaxed`: it lets nobody know of what was before.
    ClusterArrive {
        relaxed: bool,
    },
    ClusterWait,
    Branch {
        to: u32,
        uniform: bool,
    },
    BranchTable {
        index: R,
        to: Box<[u32]>,
    },
    Exit,
    Trap,
    /// Runs at `griddepcontrol.wait`.
    DependencyWait,
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u32,
        read: Option<R>,
    },
    CopyCommit,
    CopyWait {
        left: u32,
    },
    CopyArrive {
        bar: Address,
    },
    BarInit {
        bar: Address,
        count: R,
    },
    BarInval {
        bar: Address,
    },
    BarArrive {
        bar: Address,
        expect: Option<R>,
    },
    /// `mbarrier.try_wait`, which may wait as long as it likes: here, until the phase of this parity is over.
    BarTest {
        d: R,
        bar: Address,
        parity: R,
    },
    StoreAsync {
        to: Address,
        a: R,
        bar: Address,
    },
    BulkCopy {
        to: Address,
        from: Address,
        bytes: R,
        bar: Address,
    },
    TensorCopy {
        to: Address,
        map: R,
        at: Box<[R]>,
        bar: Address,
        offsets: Option<Box<[R]>>,
    },
    TensorStore {
        map: R,
        at: Box<[R]>,
        from: Address,
    },
    StoreCommit,
    /// `cp.async.bulk.wait_group.read`; what was read is written at once.
    StoreWait {
        left: u32,
    },
    Ldmatrix {
        trans: bool,
        d: [R; 4],
        at: Address,
    },
    /// `movmatrix.trans`: rows of an 8 by 8 matrix become columns.
    Movmatrix {
        d: R,
        a: R,
    },
    /// `stmatrix`, each matrix transposed.
    Stmatrix {
        a: [R; 4],
        at: Address,
    },
    Mma {
        kind: crate::tensor::mma::MmaKind,
        d: [R; 4],
        a: [R; 4],
        b: [R; 2],
        c: [R; 4],
    },
    Wgmma(Box<Wgmma>),
    WgmmaCommit,
    WgmmaWait {
        left: u32,
    },
}

/// `wgmma.mma_async`.
#[derive(Clone, Debug)]
pub(crate) struct Wgmma {
    pub(crate) kind: crate::tensor::wgmma::WgmmaKind,
    pub(crate) n: usize,
    pub(crate) d: Box<[R]>,
    /// Four registers, or a descriptor.
    pub(crate) a: Result<[R; 4], R>,
    pub(crate) b: R,
    pub(crate) add: R,
    pub(crate) negate: [bool; 2],
    pub(crate) transpose: [bool; 2],
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    /// The predicate that it waits for, and whether it is negated.
    pub(crate) guard: Option<(R, bool)>,
    /// What it does.
    pub(crate) op: Op,
}
