//! Heads of bundles: what passes has bounded numbers of harmless names, and written anew it reads
//! the same.

use cofferdam_workspace::fuzzing::{
    MAX_BUNDLE_HEADER_BYTES, MAX_BUNDLE_REFS, SeenHeader, bundle_header,
};

use crate::has_controls;

pub(crate) fn body(data: &[u8]) {
    let seen = match bundle_header(data) {
        Ok(seen) => seen,
        // It is shown to people.
        Err(why) => return assert!(!has_controls(&why), "{why:?}"),
    };
    assert!(seen.refs.len() <= MAX_BUNDLE_REFS);
    let id_length = if seen.object_format == "sha256" { 64 } else { 40 };
    let named = seen.refs.iter().map(|(_, id)| id);
    for id in seen.prerequisites.iter().chain(named) {
        assert_eq!(id.as_str().len(), id_length);
        assert!(id.as_str().bytes().all(|b| b.is_ascii_hexdigit()));
    }
    for (name, _) in &seen.refs {
        check_name(name);
    }
    let again = written(&seen);
    assert!(again.len() <= MAX_BUNDLE_HEADER_BYTES + data.len());
    assert_eq!(bundle_header(&again), Ok(seen), "written anew it reads the same");
}

/// git-check-ref-format(1), point by point, and what a refspec or an option would be.
fn check_name(name: &str) {
    if name == "HEAD" {
        return;
    }
    assert!(name.starts_with("refs/") && !name.ends_with(['/', '.']), "{name:?}");
    assert!(!name.contains("//") && !name.contains("..") && !name.contains("@{"), "{name:?}");
    assert!(!name.contains("/.") && !name.contains([' ', '~', '^', ':', '?', '*', '[', '\\']));
    assert!(!has_controls(name) && name.len() <= 512, "{name:?}");
    assert!(name.split('/').all(|part| !part.ends_with(".lock")), "{name:?}");
}

fn written(seen: &SeenHeader) -> Vec<u8> {
    let mut text = format!("# v3 git bundle\n@object-format={}\n", seen.object_format);
    for id in &seen.prerequisites {
        text.push_str(&format!("-{id} \n"));
    }
    for (name, id) in &seen.refs {
        text.push_str(&format!("{id} {name}\n"));
    }
    text.push('\n');
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(b"PACK\0\0\0\x02");
    bytes.extend_from_slice(&seen.objects.to_be_bytes());
    bytes
}
