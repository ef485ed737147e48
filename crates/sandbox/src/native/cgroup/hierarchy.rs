//! Which hierarchies this machine has, and where in them we may work.
//!
//! It only looks; nothing is created or written here.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Controller, HOST_LEAF, Version};

/// A place under which runs get their cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    /// Directory in the cgroup file system.
    pub(crate) path: PathBuf,
    /// Interface.
    pub(crate) version: Version,
    /// What it limits; empty for one that only counts.
    pub(crate) controllers: Vec<Controller>,
}

/// All bases, each controller in one of them at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hierarchies {
    /// The bases.
    pub(crate) list: Vec<Base>,
}

impl Hierarchies {
    /// Reads what is mounted. Root works at the top of each hierarchy, as container engines do;
    /// an ordinary user only where it was given a subtree: its own cgroup of version 2.
    pub(crate) fn detect() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::from_text(&mounts, &own, rustix::process::geteuid().is_root(), |path| {
            fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default()
        })
    }

    /// As [`Hierarchies::detect`], on given texts. `controllers_of` gives the content of
    /// `cgroup.controllers` of a version 2 directory.
    pub(crate) fn from_text(
        mountinfo: &str,
        own_cgroups: &str,
        is_root: bool,
        controllers_of: impl Fn(&Path) -> String,
    ) -> Self {
        let mut list: Vec<Base> = Vec::new();
        let mut free: Vec<Controller> = Controller::ALL.to_vec();
        let mut version_2 = None;
        for mount in mountinfo.lines().filter_map(Mount::parse) {
            match mount.kind {
                "cgroup2" => version_2 = version_2.or(Some(mount.point)),
                "cgroup" => {
                    let here: Vec<Controller> = free
                        .iter()
                        .copied()
                        .filter(|c| mount.options.split(',').any(|o| o == c.name()))
                        .collect();
                    free.retain(|c| !here.contains(c));
                    // Limits nothing, but counts processor time, which version 1 may do in a
                    // hierarchy of its own.
                    let counts = mount.options.split(',').any(|o| o == "cpuacct");
                    if !here.is_empty() || counts {
                        list.push(Base {
                            path: mount.point,
                            version: Version::V1,
                            controllers: here,
                        });
                    }
                }
                _ => {}
            }
        }
        if let Some(point) = version_2 {
            let path = if is_root { point } else { own_version_2(&point, own_cgroups) };
            let text = controllers_of(&path);
            let here: Vec<Controller> = free
                .into_iter()
                .filter(|c| text.split_ascii_whitespace().any(|word| word == c.name()))
                .collect();
            if !here.is_empty() {
                list.push(Base { path, version: Version::V2, controllers: here });
            }
        }
        Self { list }
    }

    /// The directories of all bases.
    pub(crate) fn bases(&self) -> impl Iterator<Item = &Path> {
        self.list.iter().map(|base| base.path.as_path())
    }
}

/// The caller's own cgroup of version 2: the line `0::PATH`. Once it has moved to its leaf, the
/// cgroup above is the one that was given to it.
fn own_version_2(point: &Path, own_cgroups: &str) -> PathBuf {
    let path = own_cgroups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let own = point.join(path.trim_start_matches('/'));
    match own.parent() {
        Some(parent) if own.ends_with(HOST_LEAF) => parent.to_owned(),
        _ => own,
    }
}

struct Mount<'a> {
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// A line of `mountinfo`: fields, ` - `, type, source, options of the file system.
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let kind = right.next()?;
        let options = right.nth(1)?;
        let point = left.split(' ').nth(4)?;
        Some(Self { point: PathBuf::from(point), kind, options })
    }
}
