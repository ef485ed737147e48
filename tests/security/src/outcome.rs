//! What came of an attempt. A refusal counts only for a reason that a wall gives: a call that fails
//! because its arguments were odd has got through.

use std::io;

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Refused, with the reason (an error's name as a rule).
    Refused(String),
    /// It got through, with what it got.
    Through(String),
}

/// What came of the permitted twin: `Err` says why the legal neighbour does not work.
pub type Twin = Result<(), String>;

/// Errors with which a wall refuses a call.
const WALL: [i32; 7] = [
    libc::EPERM,
    libc::EACCES,
    libc::ENOSYS,
    libc::EAFNOSUPPORT,
    libc::EPROTONOSUPPORT,
    libc::ESOCKTNOSUPPORT,
    libc::EROFS,
];

/// The name of an error number, as far as one is met here.
#[must_use]
pub fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::ESRCH => "ESRCH",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EXDEV => "EXDEV",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOTTY => "ENOTTY",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::ENOSYS => "ENOSYS",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
        libc::ESOCKTNOSUPPORT => "ESOCKTNOSUPPORT",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        other => return format!("errno {other}"),
    };
    name.to_owned()
}

/// The calling thread's last error number.
#[must_use]
pub fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The error number of an I/O error, zero for one of Rust's own.
#[must_use]
pub fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

impl Outcome {
    /// Judges a raw system call: refused only by an error that a wall gives.
    #[must_use]
    pub fn call(result: i64) -> Self {
        if result != -1 {
            return Self::Through(format!("returned {result}"));
        }
        Self::errno(last_errno(), &WALL)
    }

    /// Judges an error number by the list of those that are refusals.
    #[must_use]
    pub fn errno(errno: i32, refusals: &[i32]) -> Self {
        if refusals.contains(&errno) {
            Self::Refused(errno_name(errno))
        } else {
            Self::Through(format!("failed only with {}", errno_name(errno)))
        }
    }

    /// Judges a result of the standard library by the list of errors that are refusals.
    #[must_use]
    pub fn of<T>(result: io::Result<T>, refusals: &[i32]) -> Self {
        match result {
            Ok(_) => Self::Through("done".to_owned()),
            Err(error) => Self::errno(errno_of(&error), refusals),
        }
    }

    /// Through when the condition holds.
    #[must_use]
    pub fn through_if(through: bool, detail: impl Into<String>) -> Self {
        if through { Self::Through(detail.into()) } else { Self::Refused(detail.into()) }
    }
}

/// A twin from a raw system call.
///
/// # Errors
/// The name of the error.
pub fn works(result: i64) -> Twin {
    if result == -1 { Err(errno_name(last_errno())) } else { Ok(()) }
}
