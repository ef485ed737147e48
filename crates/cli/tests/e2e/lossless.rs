//! Work is never lost under `completed`: whatever state the agent leaves its repository in, it comes
//! back, or the verdict says that it did not and where it was kept.

use crate::support::{Engine, World, on_both_engines};

on_both_engines!(
    a_side_branch_comes_back_although_head_stayed_where_it_was,
    commits_on_two_branches_are_all_counted,
    a_stash_comes_back,
    leftovers_come_back_past_a_broken_index_and_a_stale_lock,
    a_nested_repository_is_not_completed_silently,
    salvaged_work_does_not_run_anything_when_git_looks_at_it,
    work_that_could_not_be_saved_stays_until_sweep_saves_it,
);

/// All objects that the run left in the person's repository, as `git log` sees them.
fn subjects(world: &World) -> String {
    world.git(&["log", "--format=%s", "--glob=refs/cofferdam/runs", "--glob=refs/cofferdam/sides"])
}

fn a_side_branch_comes_back_although_head_stayed_where_it_was(engine: Engine) {
    let world = World::new(engine);
    let script = "git checkout -q -b side; echo s > s.txt; git add s.txt; git commit -q -m 'On the side'; git checkout -q main";
    let ran = world.run_shell(script).expect(0);
    assert!(ran.stdout.starts_with("completed"), "{}", ran.stdout);
    assert!(subjects(&world).contains("On the side"), "{}", subjects(&world));
    world.assert_nothing_left();
}

fn commits_on_two_branches_are_all_counted(engine: Engine) {
    let world = World::new(engine);
    let script = "git checkout -q -b side; git commit -q --allow-empty -m 'On the side'; git checkout -q main; git commit -q --allow-empty -m 'On main'";
    world.run_shell(script).expect(0);
    let subjects = subjects(&world);
    assert!(subjects.contains("On the side") && subjects.contains("On main"), "{subjects}");
}

fn a_stash_comes_back(engine: Engine) {
    let world = World::new(engine);
    world.run_shell("echo stashed > greet.sh; git stash -q").expect(0);
    let found = world.git(&["show", &format!("{}:greet.sh", side(&world))]);
    assert_eq!(found, "stashed");
}

/// The object of the newest run's first side ref.
fn side(world: &World) -> String {
    world.last()["collected"]["sides"][0]["id"].as_str().expect("a side ref").to_owned()
}

fn leftovers_come_back_past_a_broken_index_and_a_stale_lock(engine: Engine) {
    for breakage in
        ["echo garbage > .git/index", "touch .git/refs/heads/main.lock", "mkdir .git/index.lock"]
    {
        let world = World::new(engine);
        let ran = world.run_shell(&format!("echo work > w.txt; {breakage}"));
        let result = world.last();
        let id = result["run"].as_str().unwrap();
        if ran.code == Some(0) {
            let reference = format!("refs/cofferdam/runs/{id}:w.txt");
            let sides = result["collected"]["sides"].as_array().cloned().unwrap_or_default();
            let places = sides
                .iter()
                .map(|s| format!("{}:w.txt", s["id"].as_str().unwrap()))
                .chain([reference]);
            let came = places.into_iter().any(|place| {
                let shown = std::process::Command::new("git")
                    .current_dir(world.repo())
                    .args(["show", &place])
                    .output()
                    .unwrap();
                shown.stdout == b"work\n"
            });
            assert!(came, "{breakage}: completed, and the work is nowhere: {result:#}");
        } else {
            let retained = world.fact("retained");
            let kept = std::path::Path::new(retained["place"].as_str().unwrap()).join("work/w.txt");
            assert_eq!(
                std::fs::read_to_string(&kept).unwrap(),
                "work\n",
                "{breakage}: {}",
                kept.display()
            );
        }
    }
}

fn a_nested_repository_is_not_completed_silently(engine: Engine) {
    let world = World::new(engine);
    let ran = world.run_shell("git init -q vendor && echo inner > vendor/inner.txt");
    if ran.code == Some(0) {
        let id = world.last()["run"].as_str().unwrap().to_owned();
        let place = format!("refs/cofferdam/runs/{id}:vendor/inner.txt");
        assert_eq!(world.git(&["show", &place]), "inner");
    } else {
        assert!(ran.stdout.contains("RUN-012") && ran.stdout.contains("vendor"), "{}", ran.stdout);
        let retained = world.fact("retained");
        let kept =
            std::path::Path::new(retained["place"].as_str().unwrap()).join("work/vendor/inner.txt");
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "inner\n", "{}", kept.display());
    }
    world.assert_nothing_left();
}

fn salvaged_work_does_not_run_anything_when_git_looks_at_it(engine: Engine) {
    let world = World::new(engine);
    let canary = world.dir.path().join("executed");
    let script = format!(
        "git config core.fsmonitor 'touch {}'; echo w > w.txt; git -c core.fsmonitor= add w.txt; git -c core.fsmonitor= commit -q -m w; \
         rm -f .git/objects/$(git rev-parse HEAD | sed 's,^..,&/,'); true",
        canary.display()
    );
    let ran = world.run_shell(&script).expect(1);
    let retained = world.fact("retained");
    let work = std::path::Path::new(retained["place"].as_str().unwrap()).join("work");
    assert!(work.join("w.txt").exists(), "the work was kept: {}", ran.stdout);
    // As a person or their prompt would do, with git willing to trust the place.
    let _looked = std::process::Command::new("git")
        .current_dir(&work)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", world.dir.path().join("home"))
        .env("GIT_CEILING_DIRECTORIES", world.dir.path())
        .args(["-c", "safe.directory=*", "status"])
        .output()
        .unwrap();
    assert!(!canary.exists(), "looking at salvaged work ran the agent's code");
}

fn work_that_could_not_be_saved_stays_until_sweep_saves_it(engine: Engine) {
    let world = World::new(engine);
    std::fs::create_dir_all(world.data()).unwrap();
    // No directory can be made there: as on a full disk, there is no place for salvage.
    let salvage = world.data().join("salvage");
    std::fs::write(&salvage, "").unwrap();
    // The commits come back and the nested repository does not: both sides of the case.
    let script =
        "git commit -q --allow-empty -m mine; git init -q vendor && echo inner > vendor/inner.txt";
    let ran = world.run_shell(script).expect(1);
    assert!(ran.stdout.contains("could not be saved"), "{}", ran.stdout);
    let id = world.last()["run"].as_str().unwrap().to_owned();

    std::fs::remove_file(&salvage).unwrap();
    let swept = world.cofferdam(&["sweep", "--json"]).expect(0).json();
    assert_eq!(swept["removed"].as_array().unwrap().len(), 1, "{swept}");
    let kept = salvage.join(id).join("work/vendor/inner.txt");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "inner\n", "{}", kept.display());
    world.assert_nothing_left();
}
