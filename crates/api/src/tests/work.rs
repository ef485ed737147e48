//! Tasks, projects, threads and schedules over the API: durable, repeatable, refused in words.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;

/// A checkout with one commit, beside the data directory.
fn checkout(dir: &Path) -> PathBuf {
    let place = dir.join("repo");
    std::fs::create_dir_all(&place).unwrap();
    for args in [
        &["init", "-q", "-b", "main"][..],
        &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ] {
        let done = std::process::Command::new("git").args(args).current_dir(&place).status();
        assert!(done.unwrap().success());
    }
    place
}

impl Lab {
    async fn get(&self, path: &str) -> Value {
        let reply = self.honest(&format!("GET /api/v1/{path}"), "").await;
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        reply.json()
    }

    async fn post(&self, path: &str, body: &Value) -> Reply {
        self.honest(&format!("POST /api/v1/{path}"), &body.to_string()).await
    }

    async fn keyed(&self, key: &str, body: &Value) -> Reply {
        let headers = [
            self.host_line(),
            self.bearer_line(),
            JSON.to_owned(),
            format!("Idempotency-Key: {key}"),
        ];
        self.tcp("POST /api/v1/tasks", &headers, &body.to_string()).await
    }
}

#[tokio::test]
async fn a_project_is_made_once_switched_and_archived() {
    let lab = Lab::new().await;
    let repo = tempfile::tempdir().unwrap();
    let place = checkout(repo.path());
    let new = json!({ "name": "site", "checkout": place });
    let made = lab.post("projects", &new).await;
    assert_eq!(made.status, 200, "{made:?}");
    let id = made.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(made.json()["switches"]["unattended"], false);
    let again = lab.post("projects", &new).await;
    assert_eq!((again.status, again.code().as_str()), (409, "API-017"));
    let switched =
        json!({ "switches": { "unattended": true, "scheduled": true, "remote": false } });
    let changed = lab.post(&format!("projects/{id}"), &switched).await;
    assert_eq!(changed.json()["switches"]["scheduled"], true);
    assert_eq!(lab.get("projects").await["projects"].as_array().unwrap().len(), 1);
    let elsewhere = json!({ "name": "x", "checkout": "/nowhere" });
    assert!(lab.post("projects", &elsewhere).await.code().starts_with("WORK-"));
    let gone = lab.honest("GET /api/v1/projects/prj-zzzzzzzz", "").await;
    assert_eq!(gone.status, 404, "{gone:?}");
    lab.end().await;
}

#[tokio::test]
async fn a_schedule_is_off_until_it_is_switched_on() {
    let lab = Lab::with_parts().await;
    let repo = tempfile::tempdir().unwrap();
    let place = checkout(repo.path());
    let project = lab.post("projects", &json!({ "name": "site", "checkout": place })).await.json();
    let new = json!({
        "project": project["id"], "cron": "30 4 * * 1", "zone": "Europe/Berlin",
        "wish": { "command": ["true"] },
    });
    let made = lab.post("schedules", &new).await;
    assert_eq!(made.status, 200, "{made:?}");
    let made = made.json();
    assert_eq!((&made["enabled"], &made["next_at_ms"]), (&json!(false), &Value::Null));
    assert_eq!(made["spec"]["checkout"], json!(place.canonicalize().unwrap()));
    let id = made["schedule"].as_str().unwrap();
    let on = lab.post(&format!("schedules/{id}/enable"), &json!({ "enabled": true })).await.json();
    assert!(on["next_at_ms"].as_u64().unwrap() > lab.host.now().0);
    for (field, wrong) in [("cron", "99 * * * *"), ("zone", "Mars/Olympus")] {
        let mut bad = new.clone();
        bad[field] = json!(wrong);
        assert_eq!(lab.post("schedules", &bad).await.code(), "API-005", "{field}");
    }
    lab.end().await;
}

#[tokio::test]
async fn the_same_request_under_the_same_key_makes_one_task_also_after_a_restart() {
    let lab = Lab::with_parts().await;
    let repo = tempfile::tempdir().unwrap();
    let place = checkout(repo.path());
    let body = json!({ "wish": { "checkout": place, "command": ["true"] }, "retry": { "max_attempts": 1 } });
    let first = lab.keyed("k1", &body).await;
    assert_eq!(first.status, 201, "{first:?}");
    let again = lab.keyed("k1", &body).await.json();
    assert_eq!(again["repeated"], true);
    assert_eq!(again["task"], first.json()["task"]);
    let mut other = body.clone();
    other["priority"] = json!(5);
    assert_eq!(lab.keyed("k1", &other).await.code(), "API-010");
    assert_eq!(lab.keyed("bad key", &body).await.code(), "API-005");
    let lab = lab.restart().await;
    let after = lab.keyed("k1", &body).await.json();
    assert_eq!((&after["repeated"], &after["task"]), (&json!(true), &first.json()["task"]));
    assert_eq!(lab.get("tasks").await["tasks"].as_array().unwrap().len(), 1);
    lab.end().await;
}

/// Waits until the task is over, by the log of all runs.
async fn over(lab: &Lab, task: &str) -> Value {
    loop {
        let detail = lab.get(&format!("tasks/{task}")).await;
        if detail["task"]["state"]["state"] != "open" {
            return detail;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_run_that_cannot_begin_is_settled_with_what_stood_in_its_way() {
    let lab = Lab::with_parts().await;
    let repo = tempfile::tempdir().unwrap();
    let place = checkout(repo.path());
    // The launcher that this lab has is no launcher: arming goes well, preparing does not.
    let body = json!({ "wish": { "checkout": place, "command": ["true"] }, "retry": { "max_attempts": 1 } });
    let made = lab.keyed("k", &body).await.json();
    let detail = over(&lab, made["task"].as_str().unwrap()).await;
    let run = made["run"].as_str().unwrap();
    let shown = lab.get(&format!("runs/{run}")).await;
    assert_eq!((&shown["over"], &shown["attempt"]), (&json!(true), &json!(1)), "{detail}");
    assert_ne!(shown["verdict"]["outcome"], "completed");
    assert_eq!(detail["attempts"].as_array().unwrap().len(), 1);
    // It can be tried again by hand, and once at a time.
    let retry =
        lab.post(&format!("tasks/{}/retry", made["task"].as_str().unwrap()), &json!({})).await;
    assert_eq!(retry.status, 200, "{retry:?}");
    lab.end().await;
}

#[tokio::test]
async fn what_is_queued_when_the_service_ends_is_taken_by_the_next_one() {
    let lab = Lab::with_parts().await;
    let repo = tempfile::tempdir().unwrap();
    let place = checkout(repo.path());
    let project = lab.post("projects", &json!({ "name": "site", "checkout": place })).await.json();
    let id = project["id"].as_str().unwrap();
    let off = json!({ "wish": { "checkout": place, "command": ["true"] }, "project": id });
    // The operator has not let runs go unattended in this project.
    assert_eq!(lab.keyed("k", &off).await.code(), "API-015");
    let host = Arc::clone(&lab.host);
    let _dir = lab.stop_serving().await;
    // While nobody serves: a task is made in the ledger alone.
    let wish = cofferdam_daemon::wish::RunWish {
        checkout: place.display().to_string(),
        command: vec!["true".to_owned()],
        ..Default::default()
    };
    let spec = wish.request(Config::default(), &|_| None).unwrap().spec;
    let task = cofferdam_run::TaskId::from_entropy([9; 5]);
    let new = cofferdam_ledger::store::work::NewTask {
        id: task.clone(),
        title: "later".to_owned(),
        origin: "person:ada".parse().unwrap(),
        project: None,
        thread: None,
        agent: None,
        priority: 0,
        spec,
        retry: cofferdam_run::retry::RetryPolicy::never(),
        created_at: host.now(),
    };
    let made = host.durable().create_task(new, None).await.unwrap();
    assert!(matches!(made, cofferdam_ledger::store::work::Created::New(_)));
    let (server, bound) =
        Server::bind(Arc::clone(&host), Box::new(|_| None), free_port()).await.unwrap();
    assert!(bound.address.is_some());
    let served = tokio::spawn(server.run(std::future::pending()));
    loop {
        if !host.durable().task(&task).await.unwrap().state.is_open() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    served.abort();
}

#[tokio::test]
async fn a_run_that_a_command_armed_for_itself_is_left_to_it() {
    let lab = Lab::with_parts().await;
    let repo = tempfile::tempdir().unwrap();
    let place = checkout(repo.path());
    let wish = cofferdam_daemon::wish::RunWish {
        checkout: place.display().to_string(),
        command: vec!["true".to_owned()],
        ..Default::default()
    };
    let request = wish.request(Config::default(), &|_| None).unwrap();
    let armed = lab.host.arm(request).await.unwrap();
    // Something else passes through the queue meanwhile.
    let body = json!({ "wish": { "checkout": place, "command": ["true"] }, "retry": { "max_attempts": 1 } });
    let made = lab.keyed("k", &body).await.json();
    over(&lab, made["task"].as_str().unwrap()).await;
    let shown = lab.get(&format!("runs/{}", armed.id())).await;
    assert_eq!((&shown["state"], &shown["task"]), (&json!("queued"), &Value::Null));
    lab.end().await;
}

#[tokio::test]
async fn the_log_of_all_runs_goes_on_where_a_reader_left_and_tells_of_another_history() {
    let lab = Lab::with_parts().await;
    let repo = tempfile::tempdir().unwrap();
    let place = checkout(repo.path());
    let body = json!({ "wish": { "checkout": place, "command": ["true"] }, "retry": { "max_attempts": 1 } });
    let made = lab.keyed("k", &body).await.json();
    over(&lab, made["task"].as_str().unwrap()).await;
    let last = lab.host.durable().last_event().await.unwrap();
    let all = lab.stream("stream?after=0&transitions_only=true").await;
    let ids: Vec<u64> =
        all.lines().filter_map(|line| line.strip_prefix("id:")?.trim().parse().ok()).collect();
    assert!(ids.len() >= 2 && ids.is_sorted(), "{all}");
    assert!(all.contains("event: transition"), "{all}");
    assert!(!all.contains("event: fact"), "{all}");
    let ahead = lab.stream(&format!("stream?after={}", last + 1000)).await;
    assert!(ahead.contains("event: rebase"), "{ahead}");
    lab.end().await;
}

impl Lab {
    /// What a stream gives within a moment.
    async fn stream(&self, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(self.address()).await.unwrap();
        let request = format!(
            "GET /api/v1/{path} HTTP/1.1\r\n{}\r\n{}\r\n\r\n",
            self.host_line(),
            self.bearer_line()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut got = Vec::new();
        let moment = std::time::Duration::from_secs(1);
        let _ = tokio::time::timeout(moment, stream.read_to_end(&mut got)).await;
        String::from_utf8_lossy(&got).into_owned()
    }
}
