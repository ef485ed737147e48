//! What an engine set although nobody asked for it.
//!
//! The comparison knows the fields that are asked for. Every other field of a container's host
//! configuration, whatever later engines add to it, has to be empty or harmless: a container with
//! something else in it is not started.

use bollard::models::HostConfig;
use serde_json::Value;

use super::readback::Differences;

/// Compared one by one in `readback`, whatever they hold.
const COMPARED: &[&str] = &[
    "AutoRemove",
    "Binds",
    "CapAdd",
    "CapDrop",
    "CgroupParent",
    "CgroupnsMode",
    "CpuPeriod",
    "CpuQuota",
    "DeviceCgroupRules",
    "DeviceRequests",
    "Devices",
    "Dns",
    "DnsOptions",
    "DnsSearch",
    "ExtraHosts",
    "GroupAdd",
    "Init",
    "IpcMode",
    "Links",
    "LogConfig",
    "MaskedPaths",
    "Memory",
    "MemorySwap",
    "Mounts",
    "NanoCpus",
    "NetworkMode",
    "OomKillDisable",
    "PidMode",
    "PidsLimit",
    "PortBindings",
    "Privileged",
    "PublishAllPorts",
    "ReadonlyPaths",
    "ReadonlyRootfs",
    "RestartPolicy",
    "Runtime",
    "SecurityOpt",
    "Tmpfs",
    "UTSMode",
    "Ulimits",
    "UsernsMode",
    "VolumesFrom",
];

/// Weights, sizes of what is not used, and settings of another system: no value of them gives the
/// sandbox more than it was asked to have.
const HARMLESS: &[&str] = &[
    "BlkioWeight",
    "ConsoleSize",
    "ContainerIDFile",
    "CpuCount",
    "CpuPercent",
    "CpuShares",
    "CpusetCpus",
    "CpusetMems",
    "IOMaximumBandwidth",
    "IOMaximumIOps",
    "Isolation",
    "MemoryReservation",
    "MemorySwappiness",
    "ShmSize",
];

/// Adds every field that is neither compared, nor harmless, nor empty.
pub(super) fn look(have: &HostConfig, found: &mut Differences) {
    let Ok(Value::Object(fields)) = serde_json::to_value(have) else {
        found.0.push("the host configuration cannot be read".to_owned());
        return;
    };
    for (name, value) in fields {
        let known = COMPARED.contains(&name.as_str()) || HARMLESS.contains(&name.as_str());
        // A process that is the first to go when memory runs out is no gain for it.
        let first_to_go = name == "OomScoreAdj" && value.as_i64().is_some_and(|score| score >= 0);
        if !known && !first_to_go && !is_empty(&value) {
            found.0.push(format!("{name} is {value}, asked for was nothing"));
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(config: &HostConfig) -> Vec<String> {
        let mut found = Differences::default();
        look(config, &mut found);
        found.0
    }

    #[test]
    fn nothing_but_the_harmless_may_be_there_unasked() {
        let quiet = HostConfig {
            cpu_shares: Some(2),
            shm_size: Some(1),
            oom_score_adj: Some(100),
            volume_driver: Some(String::new()),
            sysctls: Some([].into()),
            ..HostConfig::default()
        };
        assert_eq!(names(&quiet), Vec::<String>::new());
        for loud in [
            HostConfig {
                sysctls: Some([("a".to_owned(), "b".to_owned())].into()),
                ..quiet.clone()
            },
            HostConfig { oom_score_adj: Some(-900), ..quiet.clone() },
            HostConfig { cgroup: Some("container:x".to_owned()), ..quiet.clone() },
            HostConfig {
                storage_opt: Some([("size".to_owned(), "1".to_owned())].into()),
                ..quiet.clone()
            },
            HostConfig { cpu_realtime_runtime: Some(1), ..quiet.clone() },
            HostConfig { annotations: Some([("x".to_owned(), "y".to_owned())].into()), ..quiet },
        ] {
            assert_eq!(names(&loud).len(), 1);
        }
    }

    #[test]
    fn every_listed_name_is_a_field_of_the_interface() {
        // A default value leaves all fields out, so each is looked for in the source of its names.
        let mut all = COMPARED.to_vec();
        all.extend(HARMLESS);
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
        for name in all {
            let text = [
                ("null", name),
                ("[]", name),
                ("0", name),
                ("\"\"", name),
                ("false", name),
                ("{}", name),
            ];
            let accepted = text.iter().any(|(value, name)| {
                serde_json::from_str::<HostConfig>(&format!("{{\"{name}\": {value}}}")).is_ok_and(
                    |config| serde_json::to_value(config).is_ok_and(|v| v.get(name).is_some()),
                )
            });
            assert!(accepted, "{name}");
        }
    }
}
