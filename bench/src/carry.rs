//! Carrying a repository in and commits out, beside clones of the same repository.
//!
//! The peer with the same work is the bare clone: a snapshot checks nothing out, that happens in the
//! sandbox. In: open and snapshot of a clean tree, and with one uncommitted edit. Out: import of a
//! bundle with one commit over the snapshot. What the guest does between the two is in `run-native`.

use std::path::{Path, PathBuf};

use cofferdam_run::ids::ObjectId;
use cofferdam_workspace::{BUNDLE_REF, Checkout, ImportRequest, Snapshot, import};

use crate::outside::Watch;
use crate::report::{Table, Unit};
use crate::repository::Bench;
use crate::world::{World, run_id};

/// Name, files, commits, rounds.
const SIZES: [(&str, usize, usize, usize); 3] = [
    ("20 files, 5 commits", 20, 5, 10),
    ("10,000 files, 1 commit", 10_000, 1, 3),
    ("500 files, 2,000 commits", 500, 2_000, 4),
];
const EDITED: &str = "dir000/file0.txt";

pub(crate) async fn measure(world: &World) -> anyhow::Result<Table> {
    let mut table = Table::new("carry", "beside git clone --no-local");
    for (name, files, commits, rounds) in SIZES {
        let dir = world.directory()?;
        let bench = Bench::new(dir.path())?;
        let repository = bench.repository("repository", files, commits)?;
        let bare = table.row(format!("{name}: git clone --bare"), Unit::Ms);
        let clone = table.beside(bare, format!("{name}: git clone"), Unit::Ms);
        let clean = table.beside(bare, format!("{name}: snapshot, clean"), Unit::Ms);
        let dirty = table.beside(bare, format!("{name}: snapshot, one edit"), Unit::Ms);
        let back = table.beside(bare, format!("{name}: import, one commit"), Unit::Ms);
        let size = table.row(format!("{name}: bundle"), Unit::KiB);

        let original = std::fs::read(repository.join(EDITED))?;
        let carrier = Carrier::new(&bench, &repository).await?;
        bench.clone_ms(&repository, &[])?;
        for round in 0..rounds {
            table.add(bare, bench.clone_ms(&repository, &["--bare"])?);
            table.add(clone, bench.clone_ms(&repository, &[])?);
            let (snapshot, ms) = carrier.snapshot().await?;
            table.add(clean, ms);
            table.add(back, carrier.import(&snapshot, round).await?);
            std::fs::write(repository.join(EDITED), format!("edited in round {round}\n"))?;
            let (_, ms) = carrier.snapshot().await?;
            table.add(dirty, ms);
            std::fs::write(repository.join(EDITED), &original)?;
            if round == 0 {
                #[expect(clippy::cast_precision_loss, reason = "figures for people")]
                table.add(size, snapshot.bundle_bytes as f64 / 1024.0);
            }
            tokio::task::yield_now().await;
        }
    }
    Ok(table)
}

/// A repository and the sandbox's repository that came from its snapshot.
struct Carrier<'b> {
    bench: &'b Bench<'b>,
    repository: &'b Path,
    sandbox: PathBuf,
    /// A directory for the bundles, as a run has one.
    run: PathBuf,
}

impl<'b> Carrier<'b> {
    async fn new(bench: &'b Bench<'b>, repository: &'b Path) -> anyhow::Result<Self> {
        let (sandbox, run) = (bench.path("sandbox"), bench.path("run"));
        std::fs::create_dir(&sandbox)?;
        std::fs::create_dir(&run)?;
        let carrier = Self { bench, repository, sandbox, run };
        carrier.snapshot().await?;
        let bundle = carrier.bundle_in().to_string_lossy().into_owned();
        let refspec = format!("{BUNDLE_REF}:refs/heads/work");
        for args in
            [&["init", "-q"][..], &["fetch", "-q", &bundle, &refspec], &["checkout", "-q", "work"]]
        {
            bench.run(&carrier.sandbox, args)?;
        }
        Ok(carrier)
    }

    fn bundle_in(&self) -> PathBuf {
        self.run.join("in.bundle")
    }

    fn bundle_out(&self) -> PathBuf {
        self.run.join("out.bundle")
    }

    async fn open(&self) -> anyhow::Result<Checkout> {
        Ok(Checkout::open_in(&self.bench.env(), self.repository).await?)
    }

    /// Opens the checkout and takes a snapshot: it and milliseconds.
    async fn snapshot(&self) -> anyhow::Result<(Snapshot, f64)> {
        let run = run_id()?;
        let watch = Watch::start();
        let snapshot = self.open().await?.snapshot(&run, &self.bundle_in()).await?;
        Ok((snapshot, watch.ms()))
    }

    /// Commits something new in the sandbox, packs it, and imports it: milliseconds of the import.
    async fn import(&self, snapshot: &Snapshot, round: usize) -> anyhow::Result<f64> {
        let git = |args: &[&str]| self.bench.run(&self.sandbox, args);
        git(&["reset", "-q", "--hard", snapshot.base.as_str()])?;
        std::fs::write(self.sandbox.join("new.txt"), format!("made in round {round}\n"))?;
        git(&["add", "new.txt"])?;
        git(&["commit", "-q", "-m", "Add a file"])?;
        let head: ObjectId = git(&["rev-parse", "HEAD"])?.parse()?;
        let out = self.bundle_out().to_string_lossy().into_owned();
        let without = format!("^{}", snapshot.base);
        git(&["bundle", "create", "-q", &out, "HEAD", "refs/heads/work", &without])?;
        let refs = ["HEAD", "refs/heads/work"].map(|name| (name.to_owned(), head.clone()));
        let checkout = self.open().await?;
        let watch = Watch::start();
        let imported = import(ImportRequest {
            checkout: &checkout,
            run: run_id()?,
            base: snapshot.base.clone(),
            base_bundle: self.bundle_in(),
            bundle: self.bundle_out(),
            expected_head: head,
            expected_refs: refs.to_vec(),
            quarantine: self.run.join("quarantine.git"),
        })
        .await?;
        let ms = watch.ms();
        anyhow::ensure!(imported.commits == 1, "imported {imported:?}");
        Ok(ms)
    }
}
