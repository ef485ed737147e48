//! What there is to be reached on the host if a wall is missing: listeners, a secret file, a shared
//! memory segment. All of it is the test's own, and gone after it.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use crate::world::KEY;

pub(crate) struct Targets {
    tcp: TcpListener,
    name: String,
    _abstract: UnixListener,
    _file: UnixListener,
    segment: i32,
    dir: tempfile::TempDir,
}

impl Targets {
    pub(crate) fn new() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        // A place that everyone may enter: only the walls of the sandbox are tried.
        let dir = tempfile::Builder::new().prefix("cofferdam-target-").tempdir().unwrap();
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        open(dir.path(), 0o755);
        std::fs::write(dir.path().join("secret"), KEY).unwrap();
        open(&dir.path().join("secret"), 0o644);
        let file = UnixListener::bind(dir.path().join("socket")).unwrap();
        open(&dir.path().join("socket"), 0o777);
        let name = format!("cofferdam-target-{}-{}", std::process::id(), dir.path().display());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        // SAFETY: takes numbers only; the segment is removed when this value goes.
        let segment =
            unsafe { libc::shmget(key(), 4096, libc::IPC_CREAT | libc::IPC_EXCL | 0o666) };
        assert!(segment >= 0, "no shared memory: {}", std::io::Error::last_os_error());
        Self {
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            name,
            _abstract: UnixListener::bind_addr(&address).unwrap(),
            _file: file,
            segment,
            dir,
        }
    }

    /// The attacker's parameters.
    pub(crate) fn parameters(&self) -> Vec<String> {
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let (secret_a, secret_b) = KEY.split_at(KEY.len() / 2);
        vec![
            format!("host_port={}", self.tcp.local_addr().unwrap().port()),
            format!("host_abstract={}", self.name),
            format!("host_socket={}", self.dir.path().join("socket").display()),
            format!("host_file={}", self.dir.path().join("secret").display()),
            format!("host_pid={}", std::process::id()),
            format!("host_shm={}", key()),
            format!("host_name={}", host_name.trim()),
            format!("secret_a={secret_a}"),
            format!("secret_b={secret_b}"),
        ]
    }
}

/// Distinct for each process, and each test is one.
fn key() -> i32 {
    0x0c0f_0000 ^ i32::try_from(std::process::id()).unwrap()
}

impl Drop for Targets {
    fn drop(&mut self) {
        // SAFETY: takes numbers and a null pointer; the segment is this value's own.
        unsafe { libc::shmctl(self.segment, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}
