//! Where things are inside the sandbox. One list for engines, guest and agents.

/// The guest binary.
pub const GUEST_BIN: &str = "/cofferdam/guest";
/// Mount point of the run's own volume: the only large writable place.
pub const WORK: &str = "/work";
/// The repository.
pub const REPO: &str = "/work/repo";
/// `HOME` of the agent.
pub const HOME: &str = "/work/home";
/// Temporary files.
pub const TMP: &str = "/tmp";
/// An empty file system that mounts and modes leave open to everyone and Landlock does not: what is
/// refused here shows that Landlock holds.
pub const TRIPWIRE: &str = "/cofferdam/tripwire";
/// User and group id of everything inside.
pub const UID: u32 = 10001;
/// Loopback port of the egress proxy.
pub const PROXY_PORT: u16 = 3128;
/// Loopback port of the model gateway.
pub const MODEL_PORT: u16 = 3129;
/// Descriptor at which supervisor, shell host and built-in agent find the socket that they were given
/// at their start.
pub const SHELL_FD: i32 = 3;
/// User name of the proxy's basic credential.
pub const PROXY_USER: &str = "run";
/// What stands where a model key would be. Useless anywhere else.
pub const KEY_PLACEHOLDER: &str = "cofferdam-no-key-inside";

/// The newest system call that the profile of the sandbox was written with (Linux 6.18,
/// `file_setattr`): what is past it is refused by number. The tables of x86-64 and aarch64 share
/// their numbers from 424 on.
pub const LAST_KNOWN_CALL: u32 = 469;
