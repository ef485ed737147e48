//! A filter for everything that is the agent's: it may not change limits, priority, processor affinity
//! or I/O class of the supervisor, whose user it shares. The kernel asks only for the same user there,
//! and Landlock scopes signals alone.
//!
//! It must never bind the supervisor itself, which sets limits of the git that it starts, and never
//! admit a call because of a number that it could not know: limits of another process are changed by
//! nobody, and priorities of whole groups or users neither.

use std::io;

use crate::limits::UNTOUCHABLE;

/// Bytes of [`Untouchable::to_bytes`].
pub(crate) const BYTES: usize = UNTOUCHABLE * 4;

/// The architecture as a filter sees it, from `<linux/audit.h>`.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

// Classic BPF: `LD|W|ABS`, `JMP|JEQ|K` and `RET|K` of <linux/bpf_common.h>.
const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

const PRIO_PROCESS: u32 = 0;
const IOPRIO_WHO_PROCESS: u32 = 1;

const fn refuse(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.unsigned_abs()
}

/// Numbers of the threads that nobody else may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Untouchable(Vec<u32>);

impl Untouchable {
    /// All threads of this process and the first process of the sandbox, which may be an engine's
    /// init. Threads that are made later are not among them: see `supervisor::runtime`.
    pub(crate) fn here() -> io::Result<Self> {
        let mut all = vec![1];
        for entry in std::fs::read_dir("/proc/self/task")? {
            let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
            all.push(number.ok_or(io::ErrorKind::InvalidData)?);
        }
        all.sort_unstable();
        all.dedup();
        if all.len() > UNTOUCHABLE {
            return Err(io::Error::other(format!("{} threads", all.len())));
        }
        Ok(Self(all))
    }

    /// For the shell host: little-endian numbers, zero after the last.
    pub(crate) fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        for (place, number) in bytes.chunks_exact_mut(4).zip(&self.0) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// The reverse.
    pub(crate) fn from_bytes(bytes: &[u8; BYTES]) -> Self {
        let numbers = bytes.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four));
        Self(numbers.take_while(|number| *number != 0).collect())
    }

    /// The filter, ready to be installed where nothing may be allocated.
    pub(crate) fn filter(&self) -> Filter {
        let mut steps = vec![
            // `struct seccomp_data`: the number, the architecture, eight bytes of place, arguments.
            step(LOAD, 0, 0, 4),
            step(JUMP_EQUAL, 1, 0, ARCHITECTURE),
            step(RETURN, 0, 0, refuse(libc::ENOSYS)),
            step(LOAD, 0, 0, 0),
        ];
        // Reading limits (no new ones given: a null pointer of 64 bits) is free.
        let limits = [
            step(LOAD, 0, 0, argument(0)),
            step(JUMP_EQUAL, 4, 0, 0),
            step(LOAD, 0, 0, argument(2)),
            step(JUMP_EQUAL, 0, 3, 0),
            step(LOAD, 0, 0, argument(2) + 4),
            step(JUMP_EQUAL, 0, 1, 0),
            step(RETURN, 0, 0, ALLOW),
            step(RETURN, 0, 0, refuse(libc::EPERM)),
        ];
        block(&mut steps, libc::SYS_prlimit64, &limits);
        let scheduling = [
            libc::SYS_sched_setaffinity,
            libc::SYS_sched_setattr,
            libc::SYS_sched_setparam,
            libc::SYS_sched_setscheduler,
        ];
        for call in scheduling {
            block(&mut steps, call, &self.anyone_else(0));
        }
        // The first argument says what the second one is. Only a single process (or thread) can be
        // compared; the agent could join the supervisor's group, and its user is the supervisor's.
        let (priority, class) = (libc::SYS_setpriority, libc::SYS_ioprio_set);
        for (call, single) in [(priority, PRIO_PROCESS), (class, IOPRIO_WHO_PROCESS)] {
            let mut steps_of = vec![
                step(LOAD, 0, 0, argument(0)),
                step(JUMP_EQUAL, 1, 0, single),
                step(RETURN, 0, 0, refuse(libc::EPERM)),
            ];
            steps_of.extend(self.anyone_else(1));
            block(&mut steps, call, &steps_of);
        }
        steps.push(step(RETURN, 0, 0, ALLOW));
        Filter(steps)
    }

    /// Admits a call unless its argument `index` is one of the numbers. The kernel takes 32 bits of it.
    fn anyone_else(&self, index: u32) -> Vec<libc::sock_filter> {
        let mut steps = vec![step(LOAD, 0, 0, argument(index))];
        for number in &self.0 {
            steps.push(step(JUMP_EQUAL, 0, 1, *number));
            steps.push(step(RETURN, 0, 0, refuse(libc::EPERM)));
        }
        steps.push(step(RETURN, 0, 0, ALLOW));
        steps
    }
}

/// Offset of the lower half of an argument, on the little-endian machines that there are.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

const fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Appends what decides a call. Its last step returns, so that the number is still loaded after it.
fn block(steps: &mut Vec<libc::sock_filter>, call: libc::c_long, inside: &[libc::sock_filter]) {
    // Bounded by `UNTOUCHABLE`; the numbers of calls are small and positive.
    let past = u8::try_from(inside.len()).unwrap_or(u8::MAX);
    steps.push(step(JUMP_EQUAL, 0, past, u32::try_from(call).unwrap_or(u32::MAX)));
    steps.extend_from_slice(inside);
}

/// A filter that is ready.
#[derive(Clone)]
pub(crate) struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// Puts it on the calling thread and all that it starts, for good. Neither allocates nor locks.
    #[expect(unsafe_code, reason = "no safe wrapper installs a filter")]
    pub(crate) fn install(&mut self) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: u16::try_from(self.0.len()).unwrap_or(u16::MAX),
            filter: self.0.as_mut_ptr(),
        };
        // SAFETY: takes numbers only, then a program that has as many steps as it says and outlives
        // the call, which copies it.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(result: i64) -> i32 {
        if result == -1 { io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
    }

    /// Every call at `target`, with values that change nothing: name and error number.
    #[expect(unsafe_code, reason = "the calls themselves are what is tested")]
    fn touch(target: i32) -> Vec<(&'static str, i32)> {
        // SAFETY: all structures are valid and larger than what the kernel reads or writes.
        unsafe {
            let mut limit = [0u64; 2];
            let read =
                libc::syscall(libc::SYS_prlimit64, target, libc::RLIMIT_CORE, 0, &raw mut limit);
            let read = errno(read);
            let same =
                libc::syscall(libc::SYS_prlimit64, target, libc::RLIMIT_CORE, &raw const limit, 0);
            let same = errno(same);
            let mut mask = [0u64; 16];
            libc::syscall(libc::SYS_sched_getaffinity, 0, 128, &raw mut mask);
            let affinity = libc::syscall(libc::SYS_sched_setaffinity, target, 128, &raw const mask);
            let affinity = errno(affinity);
            let parameter = 0i32;
            let other = libc::SCHED_OTHER;
            let scheduler = errno(libc::syscall(
                libc::SYS_sched_setscheduler,
                target,
                other,
                &raw const parameter,
            ));
            let parameter =
                errno(libc::syscall(libc::SYS_sched_setparam, target, &raw const parameter));
            let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
            let priority = errno(libc::syscall(libc::SYS_setpriority, 0, target, nice));
            let class = libc::syscall(libc::SYS_ioprio_get, 1, 0);
            let class = errno(libc::syscall(libc::SYS_ioprio_set, 1, target, class));
            vec![
                ("read limits", read),
                ("set limits", same),
                ("affinity", affinity),
                ("scheduler", scheduler),
                ("parameter", parameter),
                ("priority", priority),
                ("class", class),
            ]
        }
    }

    #[test]
    fn the_named_are_out_of_reach_and_whoever_acts_is_not() {
        let outside = rustix::thread::gettid().as_raw_nonzero().get();
        let named = Untouchable(vec![1, outside.unsigned_abs()]);
        let before = std::thread::spawn(move || touch(outside)).join().unwrap();
        assert!(before.iter().all(|(_, errno)| *errno == 0), "without the filter: {before:?}");
        // A filter is its thread's own: the rest of the tests go on without.
        let (other, own, groups) = std::thread::spawn(move || {
            named.filter().install().unwrap();
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            let by_number = touch(tid).into_iter().filter(|(name, _)| *name != "set limits");
            #[expect(unsafe_code, reason = "the calls themselves are what is tested")]
            // SAFETY: takes numbers only; the values would change nothing.
            let groups = unsafe {
                let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
                [
                    errno(libc::syscall(libc::SYS_setpriority, libc::PRIO_PGRP, 0, nice)),
                    errno(libc::syscall(libc::SYS_setpriority, libc::PRIO_USER, 0, nice)),
                    errno(libc::syscall(libc::SYS_ioprio_set, 2, 0, 0)),
                    errno(libc::syscall(libc::SYS_ioprio_set, 3, 0, 0)),
                ]
            };
            (touch(outside), touch(0).into_iter().chain(by_number).collect::<Vec<_>>(), groups)
        })
        .join()
        .unwrap();
        assert!(own.iter().all(|(_, errno)| *errno == 0), "{own:?}");
        for (name, errno) in other {
            assert_eq!(errno, if name == "read limits" { 0 } else { libc::EPERM }, "{name}");
        }
        assert_eq!(groups, [libc::EPERM; 4]);
    }

    #[test]
    fn limits_of_another_are_refused_whoever_it_is() {
        let strangers = Untouchable(vec![1]);
        let outside = rustix::thread::gettid().as_raw_nonzero().get();
        let touched = std::thread::spawn(move || {
            strangers.filter().install().unwrap();
            touch(outside)
        })
        .join()
        .unwrap();
        for (name, errno) in touched {
            assert_eq!(errno, if name == "set limits" { libc::EPERM } else { 0 }, "{name}");
        }
    }

    #[test]
    fn numbers_reach_the_shell_host_whole() {
        let some = Untouchable(vec![1, 7, 70_000]);
        assert_eq!(Untouchable::from_bytes(&some.to_bytes()), some);
        let full = Untouchable((1..).take(UNTOUCHABLE).collect());
        assert_eq!(Untouchable::from_bytes(&full.to_bytes()), full);
    }
}
