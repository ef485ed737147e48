//! A world for one test: a repository, a configuration, a data directory, a scripted model.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use cofferdam_testkit::model::{ModelServer, Script};
use serde_json::Value;
use tempfile::TempDir;

/// Serves the scripted models of a test.
static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().unwrap());

/// The key that must never be seen inside.
pub(crate) const KEY: &str = "sk-test-4f2c9a77-must-stay-on-the-host";
/// No command of a test takes longer; a hang fails loudly instead of stopping the suite.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Native,
    Docker,
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Docker => "docker",
        }
    }
}

/// Runs each function as one test per engine.
macro_rules! on_both_engines {
    ($($name:ident),* $(,)?) => {
        mod native { $( #[test] fn $name() { super::$name($crate::support::Engine::Native) } )* }
        mod docker { $( #[test] fn $name() { super::$name($crate::support::Engine::Docker) } )* }
    };
}
pub(crate) use on_both_engines;

pub(crate) struct World {
    pub(crate) dir: TempDir,
    pub(crate) engine: Engine,
    pub(crate) model: Option<ModelServer>,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {self:#?}"))
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }
}

impl World {
    /// A repository with a failing test, an uncommitted edit and an untracked file.
    pub(crate) fn new(engine: Engine) -> Self {
        let dir = tempfile::Builder::new().prefix("cofferdam-e2e-").tempdir().unwrap();
        let world = Self { dir, engine, model: None };
        let repo = world.repo();
        std::fs::create_dir_all(&repo).unwrap();
        std::fs::create_dir_all(world.dir.path().join("home")).unwrap();
        std::fs::write(world.config(), "").unwrap();
        world.git(&["init", "-q", "-b", "main"]);
        world.git(&["config", "user.name", "Test Person"]);
        world.git(&["config", "user.email", "person@example.com"]);
        world.write("greet.sh", "printf 'Hello, %s\\n' \"$2\"\n");
        world.write("test.sh", "[ \"$(sh greet.sh World)\" = 'Hello, World' ]\n");
        world.write("README.md", "# Greeter\n");
        world.git(&["add", "."]);
        world.git(&["commit", "-q", "-m", "Start"]);
        world.write("README.md", "# Greeter\n\nedited, not committed\n");
        world.write("untracked.txt", "untracked\n");
        world
    }

    /// The same with a scripted model of that dialect.
    pub(crate) fn with_model(engine: Engine, dialect: &str, script: Script) -> Self {
        let mut world = Self::new(engine);
        let server = {
            let _context = RUNTIME.enter();
            ModelServer::start(script).unwrap()
        };
        server.require_key(KEY);
        world.provider(dialect, &server.base_url());
        world.model = Some(server);
        world
    }

    /// Configures the provider `scripted`.
    pub(crate) fn provider(&self, dialect: &str, base_url: &str) {
        std::fs::write(
            self.config(),
            format!(
                "[run]\nmodel = \"scripted/test-model\"\n[providers.scripted]\ndialect = \"{dialect}\"\n\
                 base_url = \"{base_url}\"\nkey_env = \"TEST_MODEL_KEY\"\nlocal = true\n"
            ),
        )
        .unwrap();
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.dir.path().join("repo")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("config.toml")
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.repo().join(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.repo().join(name)).unwrap()
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        let out = Command::new("git").current_dir(self.repo()).args(args).output().unwrap();
        assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim_end().to_owned()
    }

    /// The command, with an environment that holds nothing of the machine's.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
        command.current_dir(self.repo()).args(args).env_clear();
        command
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.dir.path().join("home"));
        command.env("COFFERDAM_CONFIG", self.config()).env("COFFERDAM_DATA_DIR", self.data());
        command.env("COFFERDAM_BIN_DIR", bin_dir()).env("TEST_MODEL_KEY", KEY);
        if let Ok(filter) = std::env::var("COFFERDAM_LOG") {
            command.env("COFFERDAM_LOG", filter);
        }
        if self.engine == Engine::Docker {
            command.env("DOCKER_HOST", docker_host());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn cofferdam(&self, args: &[&str]) -> Ran {
        finish(self.command(args).spawn().unwrap())
    }

    /// `cofferdam run` on this world's engine, with more arguments.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.cofferdam(&self.run_args(args))
    }

    pub(crate) fn run_args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec!["run", "--engine", self.engine.name()];
        if !is_root() {
            all.extend(["--accept-degraded", "memory_limit,pids_limit,cpu_limit"]);
        }
        all.extend(args);
        all
    }

    /// `run` with a shell command as the agent.
    pub(crate) fn run_shell(&self, script: &str) -> Ran {
        self.run(&["--", "sh", "-c", script])
    }

    /// The newest run.
    pub(crate) fn last(&self) -> Value {
        self.cofferdam(&["show", "--json", "last"]).expect(0).json()
    }

    pub(crate) fn facts(&self) -> Vec<Value> {
        let record = self.cofferdam(&["record", "show", "last"]).expect(0).json();
        record["entries"].as_array().unwrap().clone()
    }

    pub(crate) fn fact(&self, kind: &str) -> Value {
        let found = self.facts().into_iter().find(|f| f["type"] == kind);
        found.unwrap_or_else(|| panic!("no fact {kind}"))
    }

    /// HEAD, status and index of the checkout: must be the same before and after a run.
    pub(crate) fn state_of_checkout(&self) -> (String, String, Vec<u8>) {
        // Status may refresh the index: read it after.
        let status = self.git(&["status", "--porcelain"]);
        let head =
            format!("{} {}", self.git(&["rev-parse", "HEAD"]), self.git(&["symbolic-ref", "HEAD"]));
        (head, status, std::fs::read(self.repo().join(".git/index")).unwrap())
    }

    /// Fails when a run left anything behind on the machine.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self) {
        let runs: Vec<_> = std::fs::read_dir(self.data().join("runs"))
            .map(|d| d.flatten().map(|e| e.file_name()).collect())
            .unwrap_or_default();
        assert!(runs.is_empty(), "run directories are left: {runs:?}");
        let mine = self.dir.path().to_string_lossy().into_owned();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(&mine), "mounts are left:\n{mounts}");
        let swept = self.cofferdam(&["sweep", "--json"]).expect(0).json();
        for what in ["settled", "removed", "directories", "failed"] {
            assert_eq!(swept[what].as_array().unwrap().len(), 0, "sweep found something: {swept}");
        }
    }
}

/// Waits for a child with patience, and kills it past that.
pub(crate) fn finish(child: Child) -> Ran {
    let pid = child.id();
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if receiver.recv_timeout(PATIENCE).is_err() {
            // Our own child, not waited for yet: the id cannot have been reused.
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    });
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let _ = sender.send(());
    watchdog.join().unwrap();
    Ran {
        code: status.code(),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Waits until something holds; the suite fails when it never does.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

pub(crate) fn bin_dir() -> PathBuf {
    let place =
        std::env::var_os("COFFERDAM_BIN_DIR").expect("COFFERDAM_BIN_DIR: run through cargo");
    let place = PathBuf::from(place);
    assert!(
        place.join("cofferdam-guest").is_file(),
        "no guest in {}: run cargo xtask build",
        place.display()
    );
    place
}

pub(crate) fn docker_host() -> String {
    std::env::var("COFFERDAM_TEST_DOCKER_HOST").expect(
        "COFFERDAM_TEST_DOCKER_HOST is not set: start an engine with `cargo xtask engine up`",
    )
}

pub(crate) fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

/// Process ids of all descendants of `pid`.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(child) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        if let Some(parent) = rest.split_whitespace().nth(1).and_then(|p| p.parse::<u32>().ok()) {
            parents.push((child, parent));
        }
    }
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(c, _)| *c));
        next += 1;
    }
    found.split_off(1)
}

pub(crate) fn command_line(pid: u32) -> String {
    let bytes =
        std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}
