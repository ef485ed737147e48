//! A person with a home and a checkout, and a sandbox that works on a bundle.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_git::GitEnv;
use cofferdam_run::{ObjectId, RunId};
use cofferdam_workspace::{Checkout, ImportError, ImportRequest, Imported, Snapshot, import};
use tempfile::TempDir;

pub(crate) fn run_id() -> RunId {
    "7k2m9qxc".parse().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "tests play the person and the agent with real git")]
fn command(program: &str) -> Command {
    Command::new(program)
}

pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A person: a home with a git configuration, and room for repositories and runs.
pub(crate) struct World {
    pub(crate) dir: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        for name in ["home", "run"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let world = Self { dir };
        world.write_home(
            ".gitconfig",
            "[user]\n\tname = Ada Person\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n",
        );
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        // Canonical, as the library reports paths.
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub(crate) fn write_home(&self, name: &str, text: &str) {
        std::fs::write(self.path("home").join(name), text).unwrap();
    }

    pub(crate) fn env(&self) -> GitEnv {
        GitEnv::new(OsStr::new(PATH), Some(self.path("home")), None)
    }

    /// A repository with `files` in one commit.
    pub(crate) fn repo(&self, name: &str, files: &[(&str, &str)]) -> Repo<'_> {
        self.repo_with(name, files, &[])
    }

    pub(crate) fn repo_with(&self, name: &str, files: &[(&str, &str)], init: &[&str]) -> Repo<'_> {
        let repo = Repo { world: self, dir: self.path(name) };
        std::fs::create_dir_all(&repo.dir).unwrap();
        let mut args = vec!["init", "-q"];
        args.extend(init);
        repo.git(&args);
        for (path, text) in files {
            repo.write(path, text);
        }
        repo.git(&["add", "-A"]);
        repo.git(&["commit", "-q", "--allow-empty", "-m", "first"]);
        repo
    }

    pub(crate) fn bundle_in(&self) -> PathBuf {
        self.path("run").join("in.bundle")
    }

    pub(crate) fn bundle_out(&self) -> PathBuf {
        self.path("run").join("out.bundle")
    }
}

/// A repository of the person or of the agent.
pub(crate) struct Repo<'w> {
    pub(crate) world: &'w World,
    pub(crate) dir: PathBuf,
}

impl Repo<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = command("git");
        command
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", self.world.path("home"))
            .env("LC_ALL", "C")
            .env("GIT_EDITOR", "true")
            .current_dir(&self.dir)
            .args(["-c", "protocol.file.allow=always"])
            .args(args);
        command
    }

    /// Runs git; panics when it fails.
    pub(crate) fn git(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(
            output.status.success(),
            "git {args:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Runs git that may fail.
    pub(crate) fn try_git(&self, args: &[&str]) -> bool {
        self.command(args).output().unwrap().status.success()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        self.write_bytes(OsStr::new(path), text.as_bytes());
    }

    pub(crate) fn write_bytes(&self, path: &OsStr, bytes: &[u8]) {
        let path = self.dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.dir.join(path)).unwrap()
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.dir.join(path).symlink_metadata().is_ok()
    }

    pub(crate) fn remove(&self, path: &str) {
        std::fs::remove_file(self.dir.join(path)).unwrap();
    }

    pub(crate) fn make_executable(&self, path: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.dir.join(path);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn script(&self, path: &str, text: &str) {
        self.write(path, text);
        self.make_executable(path);
    }

    pub(crate) fn commit(&self, message: &str) -> ObjectId {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.head()
    }

    pub(crate) fn head(&self) -> ObjectId {
        self.id("HEAD")
    }

    pub(crate) fn id(&self, name: &str) -> ObjectId {
        self.git(&["rev-parse", "--verify", name]).parse().unwrap()
    }

    pub(crate) fn status(&self) -> String {
        self.git(&["status", "--porcelain", "-uall"])
    }

    pub(crate) async fn open(&self) -> Checkout {
        Checkout::open_in(&self.world.env(), &self.dir).await.unwrap()
    }

    pub(crate) async fn snapshot(&self) -> (Checkout, Snapshot) {
        let checkout = self.open().await;
        let snapshot = checkout.snapshot(&run_id(), &self.world.bundle_in()).await.unwrap();
        (checkout, snapshot)
    }

    /// Everything about the repository but its object store, byte by byte: files, index, refs, logs.
    pub(crate) fn photograph(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut found = BTreeMap::new();
        photograph(&self.dir, &self.dir, &|path| path.ends_with(".git/objects"), &mut found);
        found
    }

    /// Everything, objects included.
    pub(crate) fn photograph_all(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut found = BTreeMap::new();
        photograph(&self.dir, &self.dir, &|_| false, &mut found);
        found
    }
}

fn photograph(
    top: &Path,
    dir: &Path,
    skip: &dyn Fn(&Path) -> bool,
    found: &mut BTreeMap<Vec<u8>, Vec<u8>>,
) {
    use std::os::unix::fs::PermissionsExt as _;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        // The room for locks and scratch that an apply leaves empty.
        if skip(&path) || path.ends_with(".git/cofferdam") {
            continue;
        }
        let name = path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec();
        if metadata.is_dir() {
            found.insert(name, b"directory".to_vec());
            photograph(top, &path, skip, found);
        } else if metadata.is_symlink() {
            found.insert(name, std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec());
        } else {
            let mut bytes = format!("{:o} ", metadata.permissions().mode()).into_bytes();
            bytes.extend(std::fs::read(&path).unwrap());
            found.insert(name, bytes);
        }
    }
}

/// The agent's repository, made from the bundle as the guest does.
pub(crate) fn sandbox<'w>(world: &'w World, snapshot: &Snapshot) -> Repo<'w> {
    let dir = world.path("sandbox");
    std::fs::create_dir(&dir).unwrap();
    let repo = Repo { world, dir };
    let format = format!("--object-format={}", snapshot.object_format);
    repo.git(&["init", "-q", &format]);
    let bundle = world.bundle_in();
    let refspec = format!("{}:refs/heads/work", snapshot.bundle_ref);
    repo.git(&["fetch", "-q", bundle.to_str().unwrap(), &refspec]);
    repo.git(&["checkout", "-q", "work"]);
    assert_eq!(repo.head(), snapshot.base);
    repo
}

/// Packs `refs` of the sandbox over the base, as the guest does.
pub(crate) fn pack(
    sandbox: &Repo<'_>,
    snapshot: &Snapshot,
    refs: &[&str],
) -> Vec<(String, ObjectId)> {
    let out = sandbox.world.bundle_out();
    let exclude = format!("^{}", snapshot.base);
    let mut args = vec!["bundle", "create", "-q", out.to_str().unwrap()];
    args.extend(refs);
    args.push(&exclude);
    sandbox.git(&args);
    refs.iter().map(|name| ((*name).to_owned(), sandbox.id(name))).collect()
}

pub(crate) fn request<'c>(
    checkout: &'c Checkout,
    world: &World,
    snapshot: &Snapshot,
    refs: Vec<(String, ObjectId)>,
    head: ObjectId,
) -> ImportRequest<'c> {
    ImportRequest {
        checkout,
        run: run_id(),
        base: snapshot.base.clone(),
        base_bundle: world.bundle_in(),
        bundle: world.bundle_out(),
        expected_head: head,
        expected_refs: refs,
        quarantine: world.path("run").join("quarantine.git"),
    }
}

/// Packs `HEAD` and `work` and imports them.
pub(crate) async fn bring_back(
    checkout: &Checkout,
    snapshot: &Snapshot,
    sandbox: &Repo<'_>,
) -> Result<Imported, ImportError> {
    let refs = pack(sandbox, snapshot, &["HEAD", "refs/heads/work"]);
    import(request(checkout, sandbox.world, snapshot, refs, sandbox.head())).await
}
