//! On what the data directory lies. Write-ahead logging needs shared memory and locks that work,
//! which file systems over a network, and those of a process, do not give.
//!
//! Never guesses from mount tables or names: the kernel's own number decides.

use std::path::Path;

use super::error::cannot_open;
use crate::error::LedgerError;
use crate::store::Result;

/// Numbers from `statfs(2)` and the kernel's `magic.h`, with what to call them.
const REFUSED: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB 2"),
    (0x564c, "NCP"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x2003_0528, "OrangeFS"),
    (0x786f_4256, "a VirtualBox shared folder"),
    (0xbacb_acbc, "a VMware shared folder"),
];

/// The name of a file system that is refused.
fn refused(magic: u32) -> Option<&'static str> {
    REFUSED.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// Refuses a directory that is not on a local disk. `pretend` replaces the kernel's answer in tests.
pub(super) fn check(dir: &Path, pretend: Option<u32>) -> Result<()> {
    let magic = match pretend {
        Some(magic) => magic,
        None => {
            let found = rustix::fs::statfs(dir).map_err(|e| cannot_open(dir, e))?;
            // The type differs between machines; the numbers have 32 bits.
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::unnecessary_cast,
                reason = "the kernel's numbers have 32 bits, whatever the field's type"
            )]
            let magic = found.f_type as u32;
            magic
        }
    };
    match refused(magic) {
        Some(kind) => Err(LedgerError::NotLocal { path: dir.to_owned(), kind }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_other_machines_are_refused_and_local_ones_are_not() {
        for (magic, kind) in
            [(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0x0102_1997, "9p"), (0x6573_5546, "FUSE")]
        {
            let error = check(Path::new("/x"), Some(magic)).unwrap_err();
            assert_eq!(error.code(), "LEDGER-014");
            assert!(error.to_string().contains(kind), "{error}");
        }
        // ext4, XFS, Btrfs, tmpfs, overlay, ZFS, F2FS.
        for magic in
            [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1, 0xf2f5_2010]
        {
            assert!(check(Path::new("/x"), Some(magic)).is_ok(), "{magic:x}");
        }
    }

    #[test]
    fn the_kernel_is_asked() {
        assert!(check(Path::new("/tmp"), None).is_ok());
        // Any number will do: /proc is no disk, and is not on the list either.
        assert!(check(Path::new("/proc"), None).is_ok());
        assert_eq!(check(Path::new("/not/there"), None).unwrap_err().code(), "LEDGER-001");
    }
}
