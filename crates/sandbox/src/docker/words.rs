//! Podman's way of showing a container, in Docker's words, so that one comparison serves both.
//!
//! It rewrites spellings only: names of limits, options that Podman adds to every tmpfs, where a volume
//! is listed. Where Podman does not show a value at all, the layer is named as untold, and the comparison
//! leaves it out. It must never fill in a value without naming its layer so.

use bollard::models::{ContainerInspectResponse, HostConfig, HostConfigCgroupnsModeEnum};
use cofferdam_run::posture::Layer;

use super::create::Asked;

/// A container as it is compared.
#[derive(Debug)]
pub(crate) struct Shown {
    /// In Docker's words.
    pub(crate) container: ContainerInspectResponse,
    /// Layers of which the engine shows too little to tell that they hold. Left out of the read-back
    /// unless what is shown contradicts them.
    pub(crate) untold: Vec<Layer>,
    /// Variables that the engine adds by itself.
    pub(crate) added_variables: &'static [&'static str],
    /// It shows how its input is handled.
    pub(crate) tells_input: bool,
}

/// Docker's own answer.
pub(crate) fn docker(container: ContainerInspectResponse) -> Shown {
    Shown { container, untold: Vec::new(), added_variables: &[], tells_input: true }
}

/// Podman's answer. It shows neither the capabilities that are left (only those that it took from its
/// own default list), nor whether the cgroup namespace is the container's, nor what is masked: the
/// guest's probe and the look from outside tell these.
pub(crate) fn podman(asked: &Asked, mut container: ContainerInspectResponse) -> Shown {
    let mut untold = vec![Layer::Mounts];
    if let (Some(have), Some(want)) = (&mut container.host_config, &asked.body.host_config) {
        plain(have);
        if have.cap_drop.as_ref().is_some_and(|list| !list.is_empty()) {
            untold.push(Layer::Capabilities);
            have.cap_drop.clone_from(&want.cap_drop);
        }
        if matches!(have.cgroupns_mode, None | Some(HostConfigCgroupnsModeEnum::EMPTY)) {
            untold.push(Layer::Namespaces);
            have.cgroupns_mode = want.cgroupns_mode;
        }
        if have.masked_paths.is_none() && have.readonly_paths.is_none() {
            have.masked_paths.clone_from(&want.masked_paths);
            have.readonly_paths.clone_from(&want.readonly_paths);
        }
        // The same limit once more, in its other form.
        if let (Some(quota), Some(period @ 1..), Some(nano)) =
            (have.cpu_quota, have.cpu_period, have.nano_cpus)
            && i128::from(nano) == i128::from(quota) * 1_000_000_000 / i128::from(period)
        {
            have.nano_cpus = None;
        }
        // An option beside our own list, which it applies and does not show.
        let masks: Vec<String> = want
            .security_opt
            .iter()
            .flatten()
            .filter(|option| option.starts_with(MASK))
            .cloned()
            .collect();
        have.security_opt.get_or_insert_default().extend(masks);
        volume(asked, have);
    }
    Shown {
        container,
        untold,
        added_variables: &["TERM", "HOSTNAME", "container"],
        tells_input: false,
    }
}

/// Start of the option that hides more paths.
pub(crate) const MASK: &str = "mask=";

fn plain(have: &mut HostConfig) {
    for limit in have.ulimits.iter_mut().flatten() {
        if let Some(name) = &mut limit.name
            && let Some(bare) = name.strip_prefix("RLIMIT_")
        {
            *name = bare.to_ascii_lowercase();
        }
    }
    for options in have.tmpfs.iter_mut().flat_map(|all| all.values_mut()) {
        let kept: Vec<&str> =
            options.split(',').filter(|o| !matches!(*o, "rprivate" | "tmpcopyup")).collect();
        *options = kept.join(",");
    }
    // Its own namespace that others may be let into; nobody but the engine's owner can.
    if have.ipc_mode.as_deref() == Some("shareable") {
        have.ipc_mode = Some("private".to_owned());
    }
    if have.runtime.as_deref() == Some("oci") {
        // Its word for whichever runtime it is configured with.
        have.runtime = None;
    }
}

/// A volume is listed as a bind of its name: taken out of the list when it is exactly the one that was
/// asked for. The list of mounts, which shows its kind, is compared as for Docker.
fn volume(asked: &Asked, have: &mut HostConfig) {
    let ours = |bind: &String| {
        let mut parts = bind.splitn(3, ':');
        let options = (parts.next(), parts.next(), parts.next());
        let (Some(source), Some(target), Some(options)) = options else { return false };
        source == asked.volume
            && target == asked.target()
            && options
                .split(',')
                .all(|o| matches!(o, "rw" | "rprivate" | "nosuid" | "nodev" | "rbind"))
    };
    if let Some(binds) = &mut have.binds {
        binds.retain(|bind| !ours(bind));
    }
    // Only compared when given: Podman has no such list.
    have.mounts = have.mounts.take().filter(|all| !all.is_empty());
}
