//! Rights: user, groups, capabilities, no-new-privileges, priorities, limits.

use std::ffi::CString;
use std::fs;

use super::twins;
use crate::outcome::{Outcome, errno_name, last_errno};
use crate::promise::Promise::{P4, P5};
use crate::table::Attempt;

pub(crate) const TABLE: &[Attempt] = &[
    Attempt::new("user.is_root", "user", P4, is_root, twins::same_user),
    Attempt::new("user.foreign_group", "user", P4, foreign_group, twins::same_user),
    Attempt::new("user.become_root", "capabilities", P4, become_root, twins::same_user),
    Attempt::new("user.setgroups", "capabilities", P4, setgroups, twins::same_user),
    Attempt::new("caps.any_set", "capabilities", P4, any_set, twins::read_own_proc),
    Attempt::new("caps.capset", "capabilities", P4, capset, twins::same_user),
    Attempt::new("caps.ambient", "capabilities", P4, ambient, twins::same_user),
    Attempt::new("caps.chown_to_root", "capabilities", P4, chown, twins::write_where_allowed),
    Attempt::new("caps.mknod_disk", "capabilities", P4, mknod_disk, twins::fifo),
    Attempt::new("caps.mknod_memory", "capabilities", P4, mknod_memory, twins::fifo),
    Attempt::new("caps.file_capability", "capabilities", P4, file_capability, twins::exec_from_tmp),
    Attempt::new("nnp.bit", "no_new_privileges", P4, nnp, twins::fork_and_wait),
    Attempt::new("limits.realtime", "capabilities", P5, realtime, twins::be_nice),
    Attempt::new("limits.higher_priority", "capabilities", P5, priority, twins::be_nice),
    Attempt::new("limits.raise_files", "rlimits", P5, raise_files, twins::lower_own_limit)
        .case("S82"),
    Attempt::new("limits.raise_core", "rlimits", P5, raise_core, twins::lower_own_limit),
    Attempt::new("limits.spared_by_oom", "capabilities", P5, spared, twins::read_own_proc),
];

fn status(field: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .unwrap_or("missing")
        .trim()
        .to_owned()
}

fn is_root() -> Outcome {
    let ids = status("Uid");
    Outcome::through_if(ids.split_whitespace().any(|id| id == "0"), format!("uids {ids}"))
}

fn foreign_group() -> Outcome {
    let (ids, groups) = (status("Gid"), status("Groups"));
    let foreign =
        ids.split_whitespace().chain(groups.split_whitespace()).any(|id| id == "0" || id == "999");
    Outcome::through_if(foreign, format!("gids {ids} groups {groups}"))
}

fn become_root() -> Outcome {
    // SAFETY: takes numbers only.
    Outcome::call(i64::from(unsafe { libc::setresgid(0, 0, 0) | libc::setresuid(0, 0, 0) }))
}

fn setgroups() -> Outcome {
    let groups = [0, 4, 42];
    // SAFETY: the list has three entries.
    Outcome::call(i64::from(unsafe { libc::setgroups(3, groups.as_ptr()) }))
}

fn any_set() -> Outcome {
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(status);
    let held = sets.iter().any(|set| u64::from_str_radix(set, 16) != Ok(0));
    Outcome::through_if(held, sets.join(" "))
}

fn capset() -> Outcome {
    let header = [0x2008_0522u32, 0];
    let sets = [u32::MAX; 6];
    // SAFETY: version 3 of the header, for this process, with two sets of three words.
    Outcome::call(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) })
}

fn ambient() -> Outcome {
    // SAFETY: takes numbers only. CAP_NET_RAW.
    Outcome::call(i64::from(unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, 13, 0, 0)
    }))
}

fn chown() -> Outcome {
    let path = c"/work/.chown";
    let _made = fs::write("/work/.chown", b"x");
    // SAFETY: a valid path.
    let result = unsafe { libc::chown(path.as_ptr(), 0, 0) };
    let outcome = Outcome::call(i64::from(result));
    let _gone = fs::remove_file("/work/.chown");
    outcome
}

fn mknod(kind: u32, major: u32, minor: u32) -> Outcome {
    let mut last = Outcome::Refused(String::new());
    for place in ["/work", "/tmp", "/dev/shm"] {
        let Ok(path) = CString::new(format!("{place}/.node")) else { continue };
        // SAFETY: a valid path; the node is removed again.
        let result =
            unsafe { libc::mknod(path.as_ptr(), kind | 0o666, libc::makedev(major, minor)) };
        last = Outcome::call(i64::from(result));
        // SAFETY: as above.
        unsafe { libc::unlink(path.as_ptr()) };
        if matches!(last, Outcome::Through(_)) {
            return last;
        }
    }
    last
}

fn mknod_disk() -> Outcome {
    mknod(libc::S_IFBLK, 8, 0)
}

fn mknod_memory() -> Outcome {
    mknod(libc::S_IFCHR, 1, 1)
}

fn file_capability() -> Outcome {
    let _made = fs::write("/work/.capability", b"x");
    // Version 2, effective, CAP_NET_RAW permitted.
    let value: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    // SAFETY: valid strings and a value of 20 bytes.
    let result = unsafe {
        libc::setxattr(
            c"/work/.capability".as_ptr(),
            c"security.capability".as_ptr(),
            value.as_ptr().cast(),
            20,
            0,
        )
    };
    let errno = last_errno();
    let _gone = fs::remove_file("/work/.capability");
    if result == 0 {
        Outcome::Through("set".to_owned())
    } else {
        Outcome::errno(errno, &[libc::EPERM, libc::EOPNOTSUPP])
    }
}

fn nnp() -> Outcome {
    // SAFETY: takes numbers only.
    let set = unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) };
    Outcome::through_if(set != 1, format!("no_new_privs {set}"))
}

fn realtime() -> Outcome {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: a valid parameter.
    Outcome::call(i64::from(unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter)
    }))
}

fn priority() -> Outcome {
    // SAFETY: takes numbers only.
    Outcome::call(i64::from(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) }))
}

fn raise(resource: libc::__rlimit_resource_t, to: u64) -> Outcome {
    let limit = libc::rlimit { rlim_cur: to, rlim_max: to };
    // SAFETY: a valid structure.
    Outcome::call(i64::from(unsafe { libc::setrlimit(resource, &raw const limit) }))
}

fn raise_files() -> Outcome {
    // SAFETY: a valid structure.
    let hard = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_max
    };
    raise(libc::RLIMIT_NOFILE, hard.saturating_add(1))
}

fn raise_core() -> Outcome {
    raise(libc::RLIMIT_CORE, libc::RLIM_INFINITY)
}

fn spared() -> Outcome {
    match fs::write("/proc/self/oom_score_adj", "-1000") {
        Ok(()) => Outcome::Through("written".to_owned()),
        Err(error) => Outcome::Refused(errno_name(error.raw_os_error().unwrap_or(0))),
    }
}
