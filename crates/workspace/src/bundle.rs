//! The head of a bundle file: refs, prerequisites, object format, number of objects. Read before git
//! sees the file, so that limits and the manifest are checked first. The format is that of
//! gitformat-bundle(5).
//!
//! It must never read past [`MAX_BUNDLE_HEADER_BYTES`]; it does not look into the pack.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use cofferdam_git::escape;
use cofferdam_run::ObjectId;

/// Longest head of a bundle, bytes. A longer one is refused.
pub const MAX_BUNDLE_HEADER_BYTES: usize = 1 << 20;

/// Most refs in a run's bundle. One with more is refused.
pub const MAX_BUNDLE_REFS: usize = 2_048;

/// Longest name of a ref, bytes. A longer one is refused.
const MAX_REF_NAME_BYTES: usize = 512;

/// What a bundle says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) object_format: &'static str,
    pub(crate) prerequisites: Vec<ObjectId>,
    pub(crate) refs: Vec<(String, ObjectId)>,
    /// As the pack's own head claims.
    pub(crate) objects: u32,
}

/// Why the head of a bundle is not acceptable; texts are escaped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("{0}")]
    Malformed(String),
    #[error("ref name {0} is not acceptable")]
    RefName(String),
    #[error("it has more than {MAX_BUNDLE_REFS} refs")]
    TooManyRefs,
}

fn malformed(what: impl Into<String>) -> HeaderError {
    HeaderError::Malformed(what.into())
}

/// Reads the head of the file at `path`.
pub(crate) fn read(path: &Path) -> std::io::Result<Result<Header, HeaderError>> {
    let mut bytes = Vec::new();
    let bound = u64::try_from(MAX_BUNDLE_HEADER_BYTES + 12).unwrap_or(u64::MAX);
    File::open(path)?.take(bound).read_to_end(&mut bytes)?;
    Ok(parse(&bytes))
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
    let end = bytes
        .windows(2)
        .position(|w| w == b"\n\n")
        .ok_or_else(|| malformed("its head has no end"))?;
    let mut lines = bytes[..end].split(|b| *b == b'\n');
    let version = match lines.next() {
        Some(b"# v2 git bundle") => 2,
        Some(b"# v3 git bundle") => 3,
        _ => return Err(malformed("it is not a git bundle of version 2 or 3")),
    };
    let mut header =
        Header { object_format: "sha1", prerequisites: Vec::new(), refs: Vec::new(), objects: 0 };
    for line in lines {
        if let Some(capability) = line.strip_prefix(b"@") {
            header.object_format = match capability {
                b"object-format=sha1" if version == 3 => "sha1",
                b"object-format=sha256" if version == 3 => "sha256",
                // A filter would mean that objects are missing on purpose.
                other => {
                    let what = escape::line(other, 80);
                    return Err(malformed(format!("capability {what} is not accepted")));
                }
            };
        } else if let Some(rest) = line.strip_prefix(b"-") {
            let id = rest.split(|b| *b == b' ').next().unwrap_or_default();
            header.prerequisites.push(object_id(id, header.object_format)?);
        } else {
            let space = line
                .iter()
                .position(|b| *b == b' ')
                .ok_or_else(|| malformed("a line of its head is no ref"))?;
            let id = object_id(&line[..space], header.object_format)?;
            header.refs.push((ref_name(&line[space + 1..])?, id));
            if header.refs.len() > MAX_BUNDLE_REFS {
                return Err(HeaderError::TooManyRefs);
            }
        }
    }
    let pack = &bytes[end + 2..];
    let Some(([b'P', b'A', b'C', b'K', 0, 0, 0, 2 | 3], count)) = pack
        .first_chunk::<12>()
        .and_then(|head| Some((head.first_chunk::<8>()?, head.last_chunk::<4>()?)))
    else {
        return Err(malformed("no pack follows its head"));
    };
    header.objects = u32::from_be_bytes(*count);
    Ok(header)
}

fn object_id(bytes: &[u8], format: &str) -> Result<ObjectId, HeaderError> {
    let length = if format == "sha256" { 64 } else { 40 };
    std::str::from_utf8(bytes)
        .ok()
        .filter(|text| text.len() == length)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| malformed(format!("{} is no object id", escape::line(bytes, 80))))
}

/// `HEAD` or a full name, by the rules of git-check-ref-format(1) and without what a refspec would
/// read as a pattern.
fn ref_name(bytes: &[u8]) -> Result<String, HeaderError> {
    let name = std::str::from_utf8(bytes).ok().filter(|name| is_ref_name(name));
    name.map(ToOwned::to_owned).ok_or_else(|| HeaderError::RefName(escape::line(bytes, 120)))
}

pub(crate) fn is_ref_name(name: &str) -> bool {
    if name == "HEAD" {
        return true;
    }
    name.starts_with("refs/")
        && name.len() <= MAX_REF_NAME_BYTES
        && !name.contains("..")
        && !name.contains("@{")
        && !name.chars().any(|c| c.is_control() || " ~^:?*[\\".contains(c))
        && name.split('/').count() >= 3
        && name
            .split('/')
            .all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"))
        && !name.ends_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "1111111111111111111111111111111111111111";

    fn check(text: &str) -> Result<Header, HeaderError> {
        parse(&[text.as_bytes(), b"PACK\0\0\0\x02\0\0\0\x07"].concat())
    }

    #[test]
    fn a_plain_head_is_read() {
        let header =
            check(&format!("# v2 git bundle\n-{ID} subject\n{ID} HEAD\n{ID} refs/heads/x\n\n"));
        assert_eq!(
            header,
            Ok(Header {
                object_format: "sha1",
                prerequisites: vec![ID.parse().unwrap()],
                refs: vec![
                    ("HEAD".to_owned(), ID.parse().unwrap()),
                    ("refs/heads/x".to_owned(), ID.parse().unwrap())
                ],
                objects: 7,
            })
        );
    }

    #[test]
    fn names_that_could_mean_something_else_are_refused() {
        for name in [
            "--upload-pack=x",
            "refs/heads/../../x",
            "refs/heads/a b",
            "refs/heads/*",
            "refs/heads/a:refs/heads/main",
            "refs/heads/\u{1b}[2J",
            "refs/heads/x.lock",
            "refs/heads/.x",
            "refs/heads/@{x",
            "refs//x",
            "refs/x",
            "FETCH_HEAD",
            "",
        ] {
            let found = check(&format!("# v2 git bundle\n{ID} {name}\n\n"));
            assert!(matches!(found, Err(HeaderError::RefName(_))), "{name:?}: {found:?}");
        }
        assert!(is_ref_name("refs/heads/--upload-pack=x"), "harmless once it is a full name");
    }

    #[test]
    fn filters_foreign_versions_and_cut_heads_are_refused() {
        for text in [
            "# v4 git bundle\n\n".to_owned(),
            format!("# v3 git bundle\n@filter=blob:none\n{ID} HEAD\n\n"),
            format!("# v3 git bundle\n@object-format=md5\n{ID} HEAD\n\n"),
            format!("# v2 git bundle\n@object-format=sha256\n{ID} HEAD\n\n"),
            format!("# v3 git bundle\n@object-format=sha256\n{ID} HEAD\n\n"),
            format!("# v2 git bundle\n{ID} HEAD\n"),
            "# v2 git bundle\nxyz HEAD\n\n".to_owned(),
        ] {
            assert!(matches!(check(&text), Err(HeaderError::Malformed(_))), "{text:?}");
        }
        assert!(parse(format!("# v2 git bundle\n{ID} HEAD\n\n").as_bytes()).is_err());
    }

    #[test]
    fn more_refs_than_the_bound_are_refused() {
        let lines: String =
            (0..=MAX_BUNDLE_REFS).map(|n| format!("{ID} refs/heads/{n}\n")).collect();
        assert_eq!(check(&format!("# v2 git bundle\n{lines}\n")), Err(HeaderError::TooManyRefs));
    }
}
