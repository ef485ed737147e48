//! The operator's configuration: parsed once into types that cannot be half-valid.
//!
//! It belongs to the host. Nothing in a repository is read here, and no environment variable: the
//! caller hands in the text and, later, the values of the variables that it names.

mod providers;
mod units;

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_broker::gateway::{GatewayPolicy, Prices};
use cofferdam_policy::{EgressPolicy, Services};
use cofferdam_run::EngineKind;
use cofferdam_run::posture::Layer;
use cofferdam_run::spec::{Resources, ShellNetwork, ShellSpec};
use serde::Deserialize;

pub use providers::{Provider, ResolvedModel, builtin_providers, resolve_model};
pub use units::{parse_bytes, parse_duration_ms, parse_micro_usd};

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is no TOML, or a value has the wrong type or an unknown key.
    #[error("{place}: {message}")]
    Syntax {
        /// File, and the path of the key where known.
        place: String,
        /// What is wrong.
        message: String,
        /// The nearest known key.
        nearest: Option<String>,
    },
    /// A value is well-formed and makes no sense.
    #[error("{key}: {message}")]
    Value {
        /// Dotted path of the key.
        key: String,
        /// What is wrong and what would be right.
        message: String,
    },
}

impl ConfigError {
    /// Stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Syntax { .. } => "CONFIG-001",
            Self::Value { .. } => "CONFIG-002",
        }
    }

    fn value(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Value { key: key.into(), message: message.into() }
    }
}

/// The whole configuration; every part has a default.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Defaults of runs.
    pub run: RunSection,
    /// What the sandbox may reach.
    pub egress: EgressSection,
    /// Local services by alias: the one way to a loopback or private address.
    pub services: BTreeMap<String, String>,
    /// Model providers, beside and over the built-in ones.
    pub providers: BTreeMap<String, Provider>,
    /// What the model gateway admits beyond plain generation.
    pub gateway: GatewaySection,
    /// The Docker engine.
    pub docker: DockerSection,
    /// The Podman engine.
    pub podman: PodmanSection,
    /// gVisor on the Docker engine.
    pub gvisor: GvisorSection,
    /// The native engine.
    pub native: NativeSection,
    /// How long things are kept.
    pub retention: RetentionSection,
}

/// `[run]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunSection {
    /// `native`, `docker`, `podman` or `gvisor`.
    pub engine: Option<EngineKind>,
    /// `PROVIDER/MODEL`.
    pub model: Option<String>,
    /// Wall clock, such as `90m`.
    pub wall_clock: Option<String>,
    /// Model tokens.
    pub tokens: Option<u64>,
    /// Money in US dollars, such as `"2.50"`.
    pub money: Option<String>,
    /// Model calls.
    pub model_calls: Option<u64>,
    /// Turns of the built-in agent.
    pub max_steps: Option<u32>,
    /// Bytes sent to admitted hosts, such as `256MiB`.
    pub egress_bytes_out: Option<String>,
    /// Bytes of agent output kept, such as `16MiB`.
    pub output: Option<String>,
    /// Memory, such as `4GiB`.
    pub memory: Option<String>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Cores, such as `2` or `0.5`.
    pub cpus: Option<f64>,
    /// Size of `/tmp`.
    pub tmp: Option<String>,
    /// Bytes that the work volume may take on the disk, such as `20GiB`.
    pub work_size: Option<String>,
    /// Files and directories that it may hold.
    pub work_files: Option<u64>,
    /// Processor time of all processes together, such as `30m`.
    pub cpu_time: Option<String>,
    /// Space of the host's disk that no run may use up, such as `1GiB`.
    pub disk_floor: Option<String>,
    /// Longest silence of a working agent, such as `30m`, or `off`.
    pub silence: Option<String>,
    /// What the commands of the built-in agent may reach: `rules` (the default) or `off`.
    pub shell_network: Option<ShellNetwork>,
    /// `preferred` (the default) or `required`: whether a run starts where agent and shell cannot be
    /// kept apart.
    pub shell_separation: SeparationWish,
    /// Layers that may be missing.
    pub accept_degraded: Vec<String>,
}

/// Whether agent and shell have to be kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeparationWish {
    /// Where it can be done; elsewhere it is recorded as advisory.
    #[default]
    Preferred,
    /// A run in which it cannot be done is refused.
    Required,
}

/// `[egress]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EgressSection {
    /// `host:port` or `*.suffix:port`.
    pub allow: Vec<String>,
    /// Beats `allow`.
    pub deny: Vec<String>,
}

/// `[gateway]`: each entry opens a way out of the sandbox at the provider's end.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewaySection {
    /// Types of tools and content, exactly as they stand in a request: `web_search_20250305`.
    pub types: BTreeSet<String>,
    /// Top-level fields of a request: `mcp_servers`.
    pub fields: BTreeSet<String>,
    /// URLs that the provider fetches.
    pub url_inputs: bool,
    /// Ids of files kept at the provider.
    pub file_inputs: bool,
    /// Models for side requests (titles, routers), beside the run's own.
    pub models: BTreeSet<String>,
    /// A price table to use instead of the built-in one.
    pub prices: Option<std::path::PathBuf>,
}

impl GatewaySection {
    /// What is opened, for the record.
    #[must_use]
    pub fn opened(&self) -> Vec<String> {
        let lists = [("types", &self.types), ("fields", &self.fields), ("models", &self.models)];
        let mut opened: Vec<String> = lists
            .into_iter()
            .flat_map(|(kind, names)| names.iter().map(move |n| format!("{kind}: {n}")))
            .collect();
        opened.extend(self.url_inputs.then(|| "url_inputs".to_owned()));
        opened.extend(self.file_inputs.then(|| "file_inputs".to_owned()));
        opened
    }

    /// The gateway's policy.
    #[must_use]
    pub fn policy(&self) -> GatewayPolicy {
        GatewayPolicy {
            types: self.types.clone(),
            fields: self.fields.clone(),
            url_inputs: self.url_inputs,
            file_inputs: self.file_inputs,
            models: self.models.clone(),
        }
    }

    /// The price table that the operator named.
    ///
    /// # Errors
    /// It cannot be read, or is no price table.
    pub fn price_table(&self) -> Result<Option<Prices>, ConfigError> {
        let Some(path) = &self.prices else { return Ok(None) };
        let wrong =
            |e: String| ConfigError::value("gateway.prices", format!("{}: {e}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        Prices::parse(&text).map(Some).map_err(|e| wrong(e.to_string()))
    }
}

/// `[docker]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DockerSection {
    /// `unix:///path` or `tcp://127.0.0.1:PORT`; `DOCKER_HOST` otherwise.
    pub host: Option<String>,
    /// `IMAGE@sha256:…`; made from the host's own files otherwise.
    pub base: Option<String>,
}

/// `[podman]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PodmanSection {
    /// `unix:///path` of `podman system service`; `CONTAINER_HOST` otherwise, then the usual sockets.
    pub host: Option<String>,
    /// `IMAGE@sha256:…`; made from the host's own files otherwise.
    pub base: Option<String>,
}

/// `[gvisor]`: a runtime of the engine under `[docker]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GvisorSection {
    /// The runtime's name in the Docker daemon's configuration; `runsc` otherwise.
    pub runtime: Option<String>,
}

/// `[native]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NativeSection {
    /// An unpacked image to use instead of the host's `/usr`.
    pub root: Option<std::path::PathBuf>,
}

/// `[retention]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionSection {
    /// How long salvaged work is kept, such as `14d`.
    pub salvage: String,
}

impl Default for RetentionSection {
    fn default() -> Self {
        Self { salvage: "14d".to_owned() }
    }
}

impl Config {
    /// Parses the text of the file `place`.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`] with the nearest known key, or [`ConfigError::Value`].
    pub fn parse(text: &str, place: &str) -> Result<Self, ConfigError> {
        let syntax = |path: String, message: String| {
            let place = if path.is_empty() || path == "." {
                place.to_owned()
            } else {
                format!("{place}, at {path}")
            };
            let nearest = nearest_key(&message);
            ConfigError::Syntax { place, message, nearest }
        };
        let document = toml::Deserializer::parse(text)
            .map_err(|e| syntax(String::new(), e.message().to_owned()))?;
        let config: Self = serde_path_to_error::deserialize(document)
            .map_err(|e| syntax(e.path().to_string(), e.inner().message().to_owned()))?;
        config.check()?;
        Ok(config)
    }

    /// Everything that a type alone does not catch.
    fn check(&self) -> Result<(), ConfigError> {
        self.resources()?;
        self.budgets()?;
        self.disk_floor()?;
        self.salvage_ms()?;
        if self.run.max_steps == Some(0) {
            return Err(ConfigError::value("run.max_steps", "must be more than zero"));
        }
        // As arming does it: what a run would refuse, the file's check refuses.
        EgressPolicy::load(&self.egress.allow, &self.egress.deny)
            .map_err(|e| ConfigError::value("egress", e.to_string()))?;
        Services::load(self.services.clone())
            .map_err(|e| ConfigError::value("services", e.to_string()))?;
        for name in &self.run.accept_degraded {
            parse_layer(name)?;
        }
        for (name, provider) in &self.providers {
            provider.check(name)?;
        }
        if let Some(wish) = &self.run.model {
            resolve_model(&self.providers, Some(wish), &|_| false)?;
        }
        Ok(())
    }

    /// Resource limits of a run.
    ///
    /// # Errors
    /// A value out of range.
    pub fn resources(&self) -> Result<Resources, ConfigError> {
        let mut resources = Resources::default();
        if let Some(text) = &self.run.memory {
            resources.memory_bytes = bytes("run.memory", text, 64 << 20)?;
        }
        if let Some(text) = &self.run.tmp {
            resources.tmp_bytes = bytes("run.tmp", text, 1 << 20)?;
        }
        if let Some(text) = &self.run.work_size {
            resources.work_bytes = work_size("run.work_size", text)?;
        }
        if let Some(files) = self.run.work_files {
            resources.work_files = work_files("run.work_files", files)?;
        }
        if let Some(pids) = self.run.pids {
            if !(16..=65_536).contains(&pids) {
                return Err(ConfigError::value("run.pids", "use 16 to 65536"));
            }
            resources.pids = pids;
        }
        if let Some(cpus) = self.run.cpus {
            if !(0.05..=1024.0).contains(&cpus) {
                return Err(ConfigError::value("run.cpus", "use 0.05 to 1024"));
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked to be 0.05 to 1024 one line above"
            )]
            let millis = (cpus * 1000.0).round() as u64;
            resources.cpu_millis = millis;
        }
        Ok(resources)
    }

    /// Budgets of a run.
    ///
    /// # Errors
    /// A value out of range.
    pub fn budgets(&self) -> Result<cofferdam_run::Budgets, ConfigError> {
        let mut budgets = cofferdam_run::Budgets::default();
        if let Some(text) = &self.run.wall_clock {
            budgets.wall_clock_ms = wall_clock("run.wall_clock", text)?;
        }
        if let Some(tokens) = self.run.tokens {
            budgets.tokens = positive("run.tokens", tokens)?;
        }
        if let Some(calls) = self.run.model_calls {
            budgets.model_calls = positive("run.model_calls", calls)?;
        }
        if let Some(text) = &self.run.money {
            let money = parse_micro_usd(text).map_err(|m| ConfigError::value("run.money", m))?;
            budgets.micro_usd = Some(positive("run.money", money)?);
        }
        if let Some(text) = &self.run.cpu_time {
            budgets.cpu_ms = Some(cpu_time("run.cpu_time", text)?);
        }
        if let Some(text) = &self.run.silence {
            budgets.silence_ms = silence("run.silence", text)?;
        }
        if let Some(text) = &self.run.egress_bytes_out {
            budgets.egress_bytes_out = bytes("run.egress_bytes_out", text, 0)?;
        }
        if let Some(text) = &self.run.output {
            budgets.output_bytes = bytes("run.output", text, 1024)?;
        }
        Ok(budgets)
    }

    /// Space of the host's disk that no run may use up, bytes; `None` for the default.
    ///
    /// # Errors
    /// No size.
    pub fn disk_floor(&self) -> Result<Option<u64>, ConfigError> {
        self.run.disk_floor.as_deref().map(|text| bytes("run.disk_floor", text, 0)).transpose()
    }

    /// What the shell may reach. How far it is kept from the agent is for arming to say.
    #[must_use]
    pub fn shell(&self) -> ShellSpec {
        ShellSpec { network: self.run.shell_network.unwrap_or_default(), ..ShellSpec::default() }
    }

    /// How long salvaged work is kept, milliseconds.
    ///
    /// # Errors
    /// No duration.
    pub fn salvage_ms(&self) -> Result<u64, ConfigError> {
        parse_duration_ms(&self.retention.salvage)
            .map_err(|m| ConfigError::value("retention.salvage", m))
    }
}

/// A wall clock budget between a second and a day.
///
/// # Errors
/// No duration, or out of range.
pub fn wall_clock(key: &str, text: &str) -> Result<u64, ConfigError> {
    let ms = parse_duration_ms(text).map_err(|m| ConfigError::value(key, m))?;
    if !(1_000..=24 * 3_600_000).contains(&ms) {
        return Err(ConfigError::value(key, "use 1s to 24h"));
    }
    Ok(ms)
}

/// Longest silence of a working agent; `None` for `off`.
///
/// # Errors
/// No duration, or less than a second.
pub fn silence(key: &str, text: &str) -> Result<Option<u64>, ConfigError> {
    if text.trim() == "off" {
        return Ok(None);
    }
    let ms = parse_duration_ms(text).map_err(|m| ConfigError::value(key, m))?;
    if ms < 1_000 {
        return Err(ConfigError::value(key, "must be at least 1s, or `off`"));
    }
    Ok(Some(ms))
}

/// Bytes that the work volume may take.
///
/// # Errors
/// No size, or too small for any repository.
pub fn work_size(key: &str, text: &str) -> Result<u64, ConfigError> {
    bytes(key, text, 16 << 20)
}

/// Files that the work volume may hold.
///
/// # Errors
/// Too few for any repository.
pub fn work_files(key: &str, files: u64) -> Result<u64, ConfigError> {
    if files < 200 {
        return Err(ConfigError::value(key, "must be at least 200"));
    }
    Ok(files)
}

/// A budget of processor time.
///
/// # Errors
/// No duration, or less than a second.
pub fn cpu_time(key: &str, text: &str) -> Result<u64, ConfigError> {
    let ms = parse_duration_ms(text).map_err(|m| ConfigError::value(key, m))?;
    if ms < 1_000 {
        return Err(ConfigError::value(key, "must be at least 1s"));
    }
    Ok(ms)
}

/// The layer of that name.
///
/// # Errors
/// Unknown, with the nearest known name.
pub fn parse_layer(name: &str) -> Result<Layer, ConfigError> {
    Layer::parse(name).ok_or_else(|| {
        let known: Vec<&str> = Layer::ALL.iter().map(|l| l.as_str()).collect();
        let nearest = nearest(name, &known).unwrap_or("memory_limit");
        ConfigError::value(
            "accept_degraded",
            format!(
                "unknown layer {name:?}; did you mean {nearest:?}? Known: {}",
                known.join(", ")
            ),
        )
    })
}

fn positive(key: &str, value: u64) -> Result<u64, ConfigError> {
    if value == 0 { Err(ConfigError::value(key, "must be more than zero")) } else { Ok(value) }
}

fn bytes(key: &str, text: &str, least: u64) -> Result<u64, ConfigError> {
    let value = parse_bytes(text).map_err(|m| ConfigError::value(key, m))?;
    if value < least {
        return Err(ConfigError::value(key, format!("must be at least {least} bytes")));
    }
    Ok(value)
}

/// The known word nearest to `word`, when it is near at all.
#[must_use]
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|k| (strsim::jaro_winkler(word, k), *k))
        .filter(|(score, _)| *score > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, k)| k)
}

/// Reads serde's "unknown field `x`, expected one of `a`, `b`" and finds the nearest known name.
fn nearest_key(message: &str) -> Option<String> {
    let (head, tail) = message.split_once(", expected ")?;
    let unknown = head.split('`').nth(1)?;
    let known: Vec<&str> = tail.split('`').skip(1).step_by(2).collect();
    nearest(unknown, &known).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        let config = Config::parse("", "config.toml").unwrap();
        assert_eq!(config.budgets().unwrap(), cofferdam_run::Budgets::default());
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_known_one() {
        let error = Config::parse("[run]\nwal_clock = \"3m\"\n", "config.toml").unwrap_err();
        let ConfigError::Syntax { place, nearest, .. } = &error else { panic!("{error}") };
        assert_eq!(nearest.as_deref(), Some("wall_clock"));
        assert!(place.contains("config.toml") && place.contains("run"), "{place}");
    }

    #[test]
    fn values_are_checked_when_the_file_is_read() {
        for (text, key) in [
            ("[run]\nmemory = \"12 potatoes\"", "run.memory"),
            ("[run]\nwall_clock = \"30h\"", "run.wall_clock"),
            ("[run]\ntokens = 0", "run.tokens"),
            ("[run]\ncpus = 0.0", "run.cpus"),
            ("[run]\npids = 1", "run.pids"),
            ("[run]\nwork_size = \"1KiB\"", "run.work_size"),
            ("[run]\nwork_files = 3", "run.work_files"),
            ("[run]\ncpu_time = \"3ms\"", "run.cpu_time"),
            ("[run]\nsilence = \"0s\"", "run.silence"),
            ("[run]\ndisk_floor = \"much\"", "run.disk_floor"),
            ("[retention]\nsalvage = \"soon\"", "retention.salvage"),
            ("[run]\naccept_degraded = [\"memory_limits\"]", "accept_degraded"),
        ] {
            let error = Config::parse(text, "c").unwrap_err();
            let ConfigError::Value { key: got, .. } = &error else { panic!("{text}: {error}") };
            assert_eq!(got, key, "{text}");
        }
    }

    #[test]
    fn what_the_gateway_opens_is_named_for_the_record() {
        let text = "[gateway]\ntypes = [\"web_search_20250305\"]\nurl_inputs = true\n";
        let gateway = Config::parse(text, "c").unwrap().gateway;
        assert_eq!(gateway.opened(), ["types: web_search_20250305", "url_inputs"]);
        assert!(gateway.policy().url_inputs && !gateway.policy().file_inputs);
        assert!(Config::default().gateway.opened().is_empty());
    }

    #[test]
    fn an_unknown_layer_names_the_nearest() {
        let error = parse_layer("memory_limits").unwrap_err().to_string();
        assert!(error.contains("did you mean \"memory_limit\""), "{error}");
    }

    #[test]
    fn an_unknown_engine_is_refused_by_name() {
        let error = Config::parse("[run]\nengine = \"dokcer\"", "c").unwrap_err();
        let ConfigError::Syntax { nearest, .. } = &error else { panic!("{error}") };
        assert_eq!(nearest.as_deref(), Some("docker"));
    }
}
