//! A world for one test: a repository with the attacker in it, a configuration, a data directory, a
//! scripted model, a service that a rule may name.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use cofferdam_testkit::model::{ModelServer, Script, Turn};
use serde_json::Value;

/// The key that must never be seen inside.
pub(crate) const KEY: &str = "sk-test-9d1c7be2-must-stay-on-the-host";
/// No command of a test takes longer; a hang fails loudly instead of stopping the suite.
const PATIENCE: Duration = Duration::from_secs(240);

static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().unwrap());

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineName {
    Native,
    Docker,
}

impl EngineName {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Docker => "docker",
        }
    }
}

/// Runs each function as one test per engine.
macro_rules! on_both_engines {
    ($($name:ident),* $(,)?) => {
        mod native { $( #[test] fn $name() { super::$name($crate::world::EngineName::Native) } )* }
        mod docker { $( #[test] fn $name() { super::$name($crate::world::EngineName::Docker) } )* }
    };
}
pub(crate) use on_both_engines;

pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    engine: EngineName,
    _model: ModelServer,
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
    pub(crate) fn new(engine: EngineName) -> Self {
        let dir = tempfile::Builder::new().prefix("cofferdam-security-").tempdir().unwrap();
        let model = {
            let _context = RUNTIME.enter();
            ModelServer::start(Script::new([Turn::say("nothing to do")])).unwrap()
        };
        model.require_key(KEY);
        let web = serve();
        std::fs::write(
            dir.path().join("config.toml"),
            format!(
                "[run]\nmodel = \"scripted/test-model\"\n\
                 [providers.scripted]\ndialect = \"anthropic\"\nbase_url = \"{}\"\n\
                 key_env = \"TEST_MODEL_KEY\"\nlocal = true\n\
                 [services]\n\"web.service.internal\" = \"127.0.0.1:{web}\"\n",
                model.base_url()
            ),
        )
        .unwrap();
        let world = Self { dir, engine, _model: model };
        std::fs::create_dir_all(world.repo()).unwrap();
        std::fs::create_dir_all(world.dir.path().join("home")).unwrap();
        world.git(&["init", "-q", "-b", "main"]);
        world.git(&["config", "user.name", "Test Person"]);
        world.git(&["config", "user.email", "person@example.com"]);
        std::fs::write(world.repo().join("README.md"), "# Target\n").unwrap();
        std::fs::copy(bin_dir().join("cofferdam-attacker"), world.repo().join("attacker")).unwrap();
        world.git(&["add", "."]);
        world.git(&["commit", "-q", "-m", "Start"]);
        world
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.dir.path().join("repo")
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        let out = Command::new("git").current_dir(self.repo()).args(args).output().unwrap();
        assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim_end().to_owned()
    }

    /// The command, with an environment that holds nothing of the machine's.
    pub(crate) fn cofferdam(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(cofferdam());
        command.current_dir(self.repo()).args(args).env_clear();
        command
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.dir.path().join("home"))
            .env("COFFERDAM_CONFIG", self.dir.path().join("config.toml"))
            .env("COFFERDAM_DATA_DIR", self.data())
            .env("COFFERDAM_BIN_DIR", bin_dir())
            .env("TEST_MODEL_KEY", KEY);
        if self.engine == EngineName::Docker {
            command.env("DOCKER_HOST", docker_host());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().unwrap())
    }

    /// `cofferdam run` on this world's engine, with the model and the one rule, and these words as the
    /// agent.
    pub(crate) fn run(&self, agent: &[&str]) -> Ran {
        let mut all = vec!["run", "--engine", self.engine.text()];
        all.extend(["--model", "scripted/test-model", "--allow", "web.service.internal:80", "--"]);
        all.extend(agent);
        self.cofferdam(&all)
    }

    /// The same with a shell script.
    pub(crate) fn shell(&self, script: &str) -> Ran {
        self.run(&["sh", "-c", script])
    }

    /// The newest run.
    pub(crate) fn last(&self) -> Value {
        self.cofferdam(&["show", "--json", "last"]).expect(0).json()
    }

    pub(crate) fn facts(&self, kind: &str) -> Vec<Value> {
        let record = self.cofferdam(&["record", "show", "last"]).expect(0).json();
        let all = record["entries"].as_array().unwrap().clone();
        all.into_iter().filter(|fact| fact["type"] == kind).collect()
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

/// A small web server on loopback; gives its port. Its thread ends with the test's process.
fn serve() -> u16 {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in server.incoming().flatten().take(2000) {
            std::thread::spawn(move || {
                let mut stream = stream;
                let _limit = stream.set_read_timeout(Some(Duration::from_secs(10)));
                if stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                    let answer =
                        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
                    let _gone = stream.write_all(answer);
                }
            });
        }
    });
    port
}

/// Waits for a child with patience, and kills it past that.
fn finish(child: std::process::Child) -> Ran {
    let pid = i32::try_from(child.id()).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if receiver.recv_timeout(PATIENCE).is_err() {
            // SAFETY: our own child, not waited for yet: the id cannot have been reused.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    });
    let out = child.wait_with_output().unwrap();
    let _ended = sender.send(());
    watchdog.join().unwrap();
    Ran {
        code: out.status.code(),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

/// The command, built beside this test.
fn cofferdam() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let place = test.ancestors().nth(2).unwrap().join("cofferdam");
    assert!(place.is_file(), "no {}: run cargo xtask build", place.display());
    place
}

pub(crate) fn bin_dir() -> PathBuf {
    let place =
        std::env::var_os("COFFERDAM_BIN_DIR").expect("COFFERDAM_BIN_DIR: run through cargo");
    let place = PathBuf::from(place);
    for name in ["cofferdam-guest", "cofferdam-launch", "cofferdam-attacker"] {
        assert!(
            place.join(name).is_file(),
            "no {name} in {}: run cargo xtask build",
            place.display()
        );
    }
    place
}

pub(crate) fn docker_host() -> String {
    std::env::var("COFFERDAM_TEST_DOCKER_HOST").expect(
        "COFFERDAM_TEST_DOCKER_HOST is not set: start an engine with `cargo xtask engine up`",
    )
}
