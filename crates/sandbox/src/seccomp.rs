//! The system-call profile: what is denied, with which error, for native and Docker alike.
//!
//! It denies by name and lets the rest through, because the guest runs arbitrary toolchains; what
//! the kernel gains after this list was written is refused by number on the native engine. It never
//! replaces the layers under it: no capability, no host file system, no network.

use std::borrow::Cow;
use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};
use serde::{Deserialize, Serialize};

use crate::syscalls;

/// How an argument is compared. All comparisons are of 64 bits; an argument that the kernel cuts to
/// 32 bits is compared under a 32-bit mask, so that set upper bits do not slip past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Compare {
    /// `argument & mask == value`.
    MaskedEq {
        /// The mask.
        mask: u64,
        /// The value.
        value: u64,
    },
    /// `argument > value`.
    Greater {
        /// The value.
        value: u64,
    },
    /// `argument != value`, all 64 bits: set upper bits make it differ, and so deny.
    NotEqual {
        /// The value.
        value: u64,
    },
}

/// A condition on one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgRule {
    /// Which argument, from zero.
    pub index: u8,
    /// How it is compared.
    #[serde(flatten)]
    pub compare: Compare,
}

/// Denied calls that share an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DenyRule {
    /// Names as in the kernel's tables. A name that an architecture lacks is left out there.
    pub names: Vec<Cow<'static, str>>,
    /// The error number that the caller gets.
    pub errno: i32,
    /// Denied only when all conditions hold, at most one on each argument; always when there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<ArgRule>,
}

/// Why a profile could not be turned into kernel filters.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// This processor architecture has no table here.
    #[error("no system-call table for the {0} architecture")]
    Architecture(&'static str),
    /// A rule names a call that is in no table here: it would deny nothing.
    #[error("no system call is named {0}")]
    Name(String),
    /// The compiler of filters refused it.
    #[error("the seccomp profile does not compile")]
    Compile(#[source] seccompiler::BackendError),
}

/// A profile: everything is allowed but what a rule denies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeccompProfile {
    /// The rules. Order has no meaning.
    pub rules: Vec<DenyRule>,
    /// The newest call that the rules know; those past it, and the x32 range, are refused by number.
    /// Always there; the native engine only, for an OCI profile cannot say it.
    pub last_known_call: Option<u32>,
}

const LOW_32: u64 = 0xffff_ffff;
/// Highest address family with a name in Linux 6.18 (`AF_MCTP`).
const LAST_FAMILY: u64 = 45;
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;
/// Puts another line discipline on a terminal, which the kernel loads a module for.
const TIOCSETD: u64 = 0x5423;

/// Families that stay: unix, inet, inet6; netlink is restricted to routing.
const OPEN_FAMILIES: [u64; 4] =
    [libc::AF_UNIX as u64, libc::AF_INET as u64, libc::AF_INET6 as u64, libc::AF_NETLINK as u64];

/// DCCP, L2TP, SCTP, UDP-Lite, SMC and Multipath TCP.
const UNUSUAL_PROTOCOLS: [u64; 6] = [33, 115, 132, 136, 256, 262];

/// Every flag of `clone` that makes a namespace. `CLONE_NEWTIME` has no room in `clone`'s flags.
const NAMESPACE_FLAGS: [u64; 7] = [
    libc::CLONE_NEWNS as u64,
    libc::CLONE_NEWCGROUP as u64,
    libc::CLONE_NEWUTS as u64,
    libc::CLONE_NEWIPC as u64,
    libc::CLONE_NEWUSER as u64,
    libc::CLONE_NEWPID as u64,
    libc::CLONE_NEWNET as u64,
];

impl SeccompProfile {
    /// The profile of every sandbox.
    #[must_use]
    pub fn standard() -> Self {
        let mut rules = vec![
            DenyRule { names: names(syscalls::DENIED), errno: libc::EPERM, when: Vec::new() },
            // Its flags live in memory, where a filter cannot look: callers fall back to `clone`.
            DenyRule { names: names(&["clone3"]), errno: libc::ENOSYS, when: Vec::new() },
        ];
        for flag in NAMESPACE_FLAGS {
            rules.push(deny_when(
                "clone",
                libc::EPERM,
                0,
                Compare::MaskedEq { mask: flag, value: flag },
            ));
        }
        for request in [TIOCSTI, TIOCLINUX, TIOCSETD] {
            let compare = Compare::MaskedEq { mask: LOW_32, value: request };
            rules.push(deny_when("ioctl", libc::EPERM, 1, compare));
        }
        // One rule per family: Docker cannot express two conditions on one argument.
        for family in (1..=LAST_FAMILY).filter(|f| !OPEN_FAMILIES.contains(f)) {
            let compare = Compare::MaskedEq { mask: LOW_32, value: family };
            rules.push(deny_when("socket", libc::EAFNOSUPPORT, 0, compare));
            rules.push(deny_when("socketpair", libc::EAFNOSUPPORT, 0, compare));
        }
        for call in ["socket", "socketpair"] {
            let compare = Compare::Greater { value: LAST_FAMILY };
            rules.push(deny_when(call, libc::EAFNOSUPPORT, 0, compare));
        }
        // Protocols that a kernel would load a module for on an ordinary user's request.
        for protocol in UNUSUAL_PROTOCOLS {
            let compare = Compare::MaskedEq { mask: LOW_32, value: protocol };
            rules.push(deny_when("socket", libc::EAFNOSUPPORT, 2, compare));
        }
        rules.push(DenyRule {
            names: names(&["socket"]),
            errno: libc::EAFNOSUPPORT,
            when: vec![
                ArgRule {
                    index: 0,
                    compare: Compare::MaskedEq { mask: LOW_32, value: libc::AF_NETLINK as u64 },
                },
                ArgRule {
                    index: 2,
                    compare: Compare::NotEqual { value: libc::NETLINK_ROUTE as u64 },
                },
            ],
        });
        Self { rules, last_known_call: Some(syscalls::LAST_KNOWN) }
    }

    /// No filter at all. For tests that show what the filter is there for; no run has it.
    #[doc(hidden)]
    #[must_use]
    pub fn none() -> Self {
        Self { rules: Vec::new(), last_known_call: None }
    }

    /// True when it denies nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.last_known_call.is_none()
    }

    /// Kernel filters for this machine, one per error number, plus one that refuses numbers outside
    /// the known tables. All of them must be installed; the kernel takes the strictest answer.
    pub fn to_seccompiler(&self) -> Result<Vec<BpfProgram>, ProfileError> {
        let arch = target_arch()?;
        let mut by_errno: BTreeMap<i32, BTreeMap<i64, Vec<SeccompRule>>> = BTreeMap::new();
        for rule in &self.rules {
            if let Some(name) = rule.names.iter().find(|name| !syscalls::is_known(name)) {
                return Err(ProfileError::Name(name.clone().into_owned()));
            }
            for number in rule.names.iter().filter_map(|n| syscalls::number(n)) {
                let chain = by_errno.entry(rule.errno).or_default().entry(number).or_default();
                // An empty chain means: whatever the arguments are. No call has rules of both kinds.
                if !rule.when.is_empty() {
                    let conditions: Result<Vec<_>, _> =
                        rule.when.iter().map(|arg| condition(*arg)).collect();
                    let rule = SeccompRule::new(conditions?).map_err(ProfileError::Compile)?;
                    chain.push(rule);
                }
            }
        }
        let mut programs: Vec<_> = self.last_known_call.map(unknown_numbers).into_iter().collect();
        for (errno, calls) in by_errno {
            let filter = SeccompFilter::new(
                calls,
                SeccompAction::Allow,
                SeccompAction::Errno(errno.unsigned_abs()),
                arch,
            )
            .map_err(ProfileError::Compile)?;
            programs.push(BpfProgram::try_from(filter).map_err(ProfileError::Compile)?);
        }
        Ok(programs)
    }

    /// The profile in Docker's JSON form, for `seccomp=` in the security options. It names this
    /// machine's architecture only: any other (and x32) is killed by the runtime's filter.
    #[must_use]
    pub fn to_docker_json(&self) -> String {
        let architecture =
            if cfg!(target_arch = "aarch64") { "SCMP_ARCH_AARCH64" } else { "SCMP_ARCH_X86_64" };
        let calls: Vec<serde_json::Value> = self.rules.iter().map(docker_rule).collect();
        serde_json::json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": [architecture],
            "syscalls": calls,
        })
        .to_string()
    }
}

fn names(list: &[&'static str]) -> Vec<Cow<'static, str>> {
    list.iter().map(|name| Cow::Borrowed(*name)).collect()
}

fn deny_when(name: &'static str, errno: i32, index: u8, compare: Compare) -> DenyRule {
    DenyRule { names: names(&[name]), errno, when: vec![ArgRule { index, compare }] }
}

fn target_arch() -> Result<TargetArch, ProfileError> {
    std::env::consts::ARCH
        .try_into()
        .map_err(|_unknown| ProfileError::Architecture(std::env::consts::ARCH))
}

fn condition(arg: ArgRule) -> Result<SeccompCondition, ProfileError> {
    let (op, value) = match arg.compare {
        Compare::MaskedEq { mask, value } => (SeccompCmpOp::MaskedEq(mask), value),
        Compare::Greater { value } => (SeccompCmpOp::Gt, value),
        Compare::NotEqual { value } => (SeccompCmpOp::Ne, value),
    };
    SeccompCondition::new(arg.index, SeccompCmpArgLen::Qword, op, value)
        .map_err(ProfileError::Compile)
}

fn docker_rule(rule: &DenyRule) -> serde_json::Value {
    let args: Vec<serde_json::Value> = rule
        .when
        .iter()
        .map(|arg| match arg.compare {
            Compare::MaskedEq { mask, value } => serde_json::json!({
                "index": arg.index, "op": "SCMP_CMP_MASKED_EQ", "value": mask, "valueTwo": value,
            }),
            Compare::Greater { value } => serde_json::json!({
                "index": arg.index, "op": "SCMP_CMP_GT", "value": value, "valueTwo": 0,
            }),
            Compare::NotEqual { value } => serde_json::json!({
                "index": arg.index, "op": "SCMP_CMP_NE", "value": value, "valueTwo": 0,
            }),
        })
        .collect();
    serde_json::json!({
        "names": rule.names,
        "action": "SCMP_ACT_ERRNO",
        "errnoRet": rule.errno,
        "args": args,
    })
}

/// Refuses, with `ENOSYS`, numbers past the newest known call and (on x86-64) the x32 range, whose
/// calls have other numbers and would match no rule.
fn unknown_numbers(last_known: u32) -> BpfProgram {
    // Classic BPF: `LD|W|ABS`, `JMP|JGT|K` and `RET|K` of <linux/bpf_common.h>.
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_GREATER: u16 = 0x25;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        // Offset 0 of `struct seccomp_data` is the call's number.
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_GREATER, 0, 1, last_known),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs()),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_compiles_to_one_filter_per_errno_and_the_number_guard() {
        let programs = SeccompProfile::standard().to_seccompiler().unwrap();
        assert_eq!(programs.len(), 4, "EPERM, ENOSYS, EAFNOSUPPORT and the guard");
        assert!(programs.iter().all(|p| !p.is_empty() && p.len() < 4096));
    }

    #[test]
    fn a_name_that_is_no_call_is_refused_and_not_left_out() {
        let mut profile = SeccompProfile::standard();
        profile.rules[0].names.push("io_urinq_setup".into());
        let error = profile.to_seccompiler().unwrap_err();
        assert!(matches!(error, ProfileError::Name(name) if name == "io_urinq_setup"));
        assert!(SeccompProfile::none().to_seccompiler().unwrap().is_empty());
    }

    #[test]
    fn no_call_is_denied_both_always_and_on_a_condition() {
        let profile = SeccompProfile::standard();
        let always: Vec<Cow<'static, str>> = profile
            .rules
            .iter()
            .filter(|r| r.when.is_empty())
            .flat_map(|r| r.names.clone())
            .collect();
        for rule in profile.rules.iter().filter(|r| !r.when.is_empty()) {
            assert!(!always.contains(&rule.names[0]), "{:?}", rule.names);
        }
    }

    #[test]
    fn docker_profile_denies_by_name_with_the_same_rules() {
        let profile = SeccompProfile::standard();
        let value: serde_json::Value = serde_json::from_str(&profile.to_docker_json()).unwrap();
        assert_eq!(value["defaultAction"], "SCMP_ACT_ALLOW");
        let calls = value["syscalls"].as_array().unwrap();
        assert_eq!(calls.len(), profile.rules.len());
        let names: Vec<&str> =
            calls[0]["names"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
        for name in ["io_uring_setup", "keyctl", "bpf", "unshare", "mount", "ptrace", "setns"] {
            assert!(names.contains(&name), "{name}");
        }
        assert!(calls.iter().any(|c| c["names"][0] == "clone3" && c["errnoRet"] == libc::ENOSYS));
    }

    #[test]
    fn af_alg_vsock_and_packet_are_denied_and_unix_and_inet_are_not() {
        let denied = |family: i32| {
            SeccompProfile::standard().rules.iter().any(|r| {
                r.names == ["socket"]
                    && matches!(r.when[..], [ArgRule { index: 0, compare: Compare::MaskedEq { value, .. } }]
                        if value == u64::from(family.unsigned_abs()))
            })
        };
        for family in [libc::AF_ALG, libc::AF_VSOCK, libc::AF_PACKET, libc::AF_BLUETOOTH, 44] {
            assert!(denied(family), "{family}");
        }
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
            assert!(!denied(family), "{family}");
        }
    }
}
