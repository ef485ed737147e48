//! The host's side of the guest protocol, and a real repository to send.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use cofferdam_link::frames::{FrameReader, FrameWriter};
use cofferdam_link::{Incoming, Link, LinkStream, join};
use cofferdam_run::ids::ObjectId;
use cofferdam_wire::{
    AgentEnd, AgentStart, Down, GitIdentity, Manifest, StartSpec, StreamOpen, Up, WorkspaceSpec,
    layout::UID,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::process::Child;

pub(crate) const BUNDLE_REF: &str = "refs/cofferdam/base";

/// A repository with one commit, and everything below one temporary directory.
pub(crate) struct World {
    pub(crate) root: tempfile::TempDir,
    pub(crate) base: ObjectId,
    pub(crate) bundle: Vec<u8>,
}

#[expect(clippy::disallowed_methods, reason = "tests use the real git")]
pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let output = std::process::Command::new("git")
        .current_dir(dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .args(["-c", "user.name=Base", "-c", "user.email=base@example.invalid"])
        .args(args)
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_format("sha1")
    }

    pub(crate) fn with_format(format: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join("source");
        std::fs::create_dir(&source).unwrap();
        git(&source, &["init", "-q", "-b", "main", &format!("--object-format={format}")]);
        std::fs::write(source.join("a.txt"), "one\n").unwrap();
        git(&source, &["add", "."]);
        git(&source, &["commit", "-qm", "Base"]);
        let base = git(&source, &["rev-parse", "HEAD"]).parse().unwrap();
        git(&source, &["update-ref", BUNDLE_REF, "HEAD"]);
        git(&source, &["bundle", "create", "-q", "../bundle", BUNDLE_REF]);
        let bundle = std::fs::read(root.path().join("bundle")).unwrap();
        std::fs::create_dir(root.path().join("guest")).unwrap();
        Self { root, base, bundle }
    }

    pub(crate) fn guest_root(&self) -> PathBuf {
        self.root.path().join("guest")
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.guest_root().join("work/repo")
    }

    pub(crate) fn spec(&self, script: &str) -> StartSpec {
        StartSpec {
            run: "7k2m9qxc".to_owned(),
            workspace: WorkspaceSpec {
                base: self.base.clone(),
                bundle_ref: BUNDLE_REF.to_owned(),
                branch: "topic/one".to_owned(),
                object_format: if self.base.as_str().len() == 40 { "sha1" } else { "sha256" }
                    .to_owned(),
                identity: GitIdentity {
                    name: "Ann Agent".to_owned(),
                    email: "ann@example.invalid".to_owned(),
                },
            },
            agent: AgentStart::Command { argv: ["sh", "-c", script].map(str::to_owned).into() },
            env: BTreeMap::from([("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())]),
            output_bytes: 1 << 20,
            shell: None,
            wall_test: None,
        }
    }

    /// Objects that came back, fetched by real git into the source repository.
    pub(crate) fn fetch(&self, bundle: &[u8]) -> PathBuf {
        let source = self.root.path().join("source");
        std::fs::write(self.root.path().join("back"), bundle).unwrap();
        git(&source, &["bundle", "verify", "-q", "../back"]);
        git(&source, &["fetch", "-q", "../back", "+refs/*:refs/back/*"]);
        if git(&source, &["bundle", "list-heads", "../back"]).ends_with(" HEAD") {
            git(&source, &["fetch", "-q", "../back", "HEAD"]);
        }
        source
    }
}

/// A running guest with its control stream.
pub(crate) struct Guest {
    pub(crate) child: Child,
    pub(crate) link: Link,
    pub(crate) incoming: Incoming,
    pub(crate) hello: Up,
    pub(crate) up: FrameReader<Up, ReadHalf<LinkStream>>,
    pub(crate) down: FrameWriter<Down, WriteHalf<LinkStream>>,
}

pub(crate) fn spawn(root: &Path) -> Child {
    spawn_by(&[], root)
}

/// Starts it through another program, given with its arguments.
pub(crate) fn spawn_by(by: &[&str], root: &Path) -> Child {
    spawn_program(&[by, &[env!("CARGO_BIN_EXE_cofferdam-guest")]].concat(), root)
}

#[expect(clippy::disallowed_methods, reason = "tests start the real guest")]
fn spawn_program(words: &[&str], root: &Path) -> Child {
    tokio::process::Command::new(words[0])
        .args(&words[1..])
        .arg("--root")
        .arg(root)
        .env("PLANTED", "must-not-be-inherited")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the guest starts")
}

impl Guest {
    /// Starts it and takes its hello.
    pub(crate) async fn start(world: &World) -> Self {
        Self::of(spawn(&world.guest_root())).await
    }

    /// The same as the first process of a pid namespace of its own.
    pub(crate) async fn start_as_first_process(world: &World) -> Self {
        let unshare = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"];
        Self::of(spawn_by(&unshare, &world.guest_root())).await
    }

    /// The same under an ordinary user's id. A test of another user than root has one already.
    pub(crate) async fn start_unprivileged(world: &World) -> Self {
        let root = world.guest_root();
        if !std::fs::metadata(world.root.path()).is_ok_and(|m| m.uid() == 0) {
            return Self::of(spawn(&root)).await;
        }
        // Its place and its program, where that user can get at them.
        let program = world.root.path().join("program");
        std::fs::copy(env!("CARGO_BIN_EXE_cofferdam-guest"), &program).unwrap();
        std::fs::set_permissions(world.root.path(), PermissionsExt::from_mode(0o755)).unwrap();
        chown(&root, Some(UID), Some(UID)).unwrap();
        let id = [format!("--reuid={UID}"), format!("--regid={UID}")];
        let by = ["setpriv", &id[0], &id[1], "--clear-groups", program.to_str().unwrap()];
        Self::of(spawn_program(&by, &root)).await
    }

    async fn of(mut child: Child) -> Self {
        let io = join(child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let (link, mut incoming) = Link::host(io).await.unwrap();
        let (header, stream) = incoming.next().await.unwrap();
        assert_eq!(serde_json::from_slice::<StreamOpen>(&header).unwrap(), StreamOpen::Control);
        let (reader, writer) = split(stream);
        let mut up = FrameReader::new(reader);
        let hello = up.next().await.unwrap().unwrap();
        Self { child, link, incoming, hello, up, down: FrameWriter::new(writer) }
    }

    pub(crate) async fn next(&mut self) -> Up {
        self.up.next().await.unwrap().expect("the guest has something to say")
    }

    /// Starts the run and sends the bundle.
    pub(crate) async fn begin(&mut self, spec: &StartSpec, bundle: &[u8]) {
        self.down.send(&Down::Start(Box::new(spec.clone()))).await.unwrap();
        let bytes = bundle.len() as u64;
        let open = serde_json::to_vec(&StreamOpen::BundleIn { bytes }).unwrap();
        let mut stream = self.link.open(&open).await.unwrap();
        stream.write_all(bundle).await.unwrap();
        stream.shutdown().await.unwrap();
    }

    /// Everything up to a running agent.
    pub(crate) async fn begin_until_started(&mut self, world: &World, spec: &StartSpec) {
        self.begin(spec, &world.bundle).await;
        assert_eq!(self.next().await, Up::WorkspaceReady { head: world.base.clone() });
        assert!(matches!(self.next().await, Up::AgentStarted { .. }));
    }

    /// Reads to the end of the run, closes, and waits for the process.
    pub(crate) async fn finish(self) -> Finished {
        self.finish_after(|| {}).await
    }

    /// The same, with a look around while the guest waits for the link to close.
    pub(crate) async fn finish_after(mut self, look: impl FnOnce()) -> Finished {
        let mut said = Vec::new();
        let (end, manifest) = loop {
            match self.next().await {
                Up::AgentEnded(end) => {
                    let Up::Manifest(manifest) = self.next().await else { panic!("no manifest") };
                    break (end, manifest);
                }
                other => said.push(other),
            }
        };
        let mut bundle = Vec::new();
        if manifest.bundle_bytes > 0 {
            let (header, mut stream) = self.incoming.next().await.unwrap();
            let open: StreamOpen = serde_json::from_slice(&header).unwrap();
            assert_eq!(open, StreamOpen::BundleOut);
            stream.read_to_end(&mut bundle).await.unwrap();
        }
        assert_eq!(bundle.len() as u64, manifest.bundle_bytes);
        assert_eq!(self.next().await, Up::Done);
        look();
        self.link.close();
        let exit = self.child.wait().await.unwrap();
        Finished { said, end, manifest, bundle, exit }
    }
}

/// A whole run.
pub(crate) struct Finished {
    pub(crate) said: Vec<Up>,
    pub(crate) end: AgentEnd,
    pub(crate) manifest: Manifest,
    pub(crate) bundle: Vec<u8>,
    pub(crate) exit: ExitStatus,
}

impl Finished {
    /// Everything that the agent printed, both streams.
    pub(crate) fn printed(&self) -> String {
        self.said
            .iter()
            .filter_map(|up| match up {
                Up::Output { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    /// The object that the bundle has for a ref.
    pub(crate) fn oid(&self, name: &str) -> Option<&ObjectId> {
        self.manifest.refs.iter().find(|r| r.name == name).map(|r| &r.oid)
    }
}

/// A whole run with that script as the agent.
pub(crate) async fn run(world: &World, script: &str) -> Finished {
    let mut guest = Guest::start(world).await;
    let spec = world.spec(script);
    guest.begin_until_started(world, &spec).await;
    guest.finish().await
}
