//! A first representative of each promise that a sealed run makes, each with its permitted twin.

use crate::support::{Engine, KEY, World, on_both_engines};

on_both_engines!(
    nothing_is_reachable_but_what_a_rule_names,
    no_credential_of_the_host_is_inside,
    the_guest_writes_only_where_it_may,
    every_layer_holds_and_is_recorded,
    what_the_agent_plants_in_git_does_not_run_on_the_host,
    a_secret_in_the_result_fails_the_run,
);

const FETCH: &str = "python3 - <<'END'\nimport urllib.request\ntry:\n  r = urllib.request.urlopen('http://TARGET/', timeout=10)\n  print('GOT', r.status, r.read().decode())\nexcept Exception as e:\n  print('NO', e)\nEND\n";

fn nothing_is_reachable_but_what_a_rule_names(engine: Engine) {
    let world = World::new(engine);
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        // Exactly one connection may ever arrive: the one that a rule names.
        let (mut stream, _) = server.accept().unwrap();
        let mut head = [0; 4096];
        let n = stream.read(&mut head).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            .unwrap();
        String::from_utf8_lossy(&head[..n]).into_owned()
    });
    let refused = world.run_shell(&FETCH.replace("TARGET", "web.service.internal:80")).expect(0);
    assert!(refused.stderr.contains("NO") && refused.stderr.contains("403"), "{}", refused.stderr);
    let fact = world.fact("egress");
    assert_eq!(
        (fact["admitted"].as_bool(), fact["target"].as_str()),
        (Some(false), Some("web.service.internal:80"))
    );

    // Twin: the operator's own service, by alias, admitted by a rule.
    std::fs::write(
        world.dir.path().join("config.toml"),
        format!("[services]\n\"web.service.internal\" = \"127.0.0.1:{port}\"\n"),
    )
    .unwrap();
    let script = FETCH.replace("TARGET", "web.service.internal:80");
    let allowed =
        world.run(&["--allow", "web.service.internal:80", "--", "sh", "-c", &script]).expect(0);
    assert!(allowed.stderr.contains("GOT 200 hello"), "{}", allowed.stderr);
    let seen = serving.join().unwrap();
    assert!(
        !seen.to_ascii_lowercase().contains("proxy-authorization"),
        "the token leaves with the request: {seen}"
    );
    let fact = world.fact("egress");
    assert_eq!(fact["admitted"], true, "{fact}");
    assert!(fact["bytes_in"].as_u64().unwrap() > 0, "{fact}");

    // Past the proxy there is nothing.
    let direct = world
        .run_shell("unset http_proxy HTTP_PROXY; python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), 3)\" && echo OUT; ls /sys/class/net 2>/dev/null; cat /proc/net/dev; true")
        .expect(0);
    assert!(!direct.stderr.contains("OUT"), "{}", direct.stderr);
    assert!(!direct.stderr.contains("eth0"), "{}", direct.stderr);
}

fn no_credential_of_the_host_is_inside(engine: Engine) {
    let world = World::with_model(engine, "anthropic", crate::sealed::fixing());
    let look = "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '; ls -la / /root /home 2>&1; echo DONE";
    let ran = world.run(&["--model", "scripted/test-model", "--", "sh", "-c", look]).expect(0);
    assert!(
        ran.stderr.contains("DONE") && ran.stderr.contains("ANTHROPIC_BASE_URL"),
        "{}",
        ran.stderr
    );
    assert!(!ran.stderr.contains(KEY), "the key is inside");
    assert!(!ran.stderr.contains("TEST_MODEL_KEY"), "a variable of the host is inside");
    assert!(
        ran.stderr.contains("cofferdam-no-key-inside"),
        "the placeholder stands where a key would"
    );
    let canary = world.fact("canary");
    assert_eq!(canary["found_in"].as_array().unwrap().len(), 0, "{canary}");
    assert!(!canary["searched"].as_array().unwrap().is_empty());
}

fn the_guest_writes_only_where_it_may(engine: Engine) {
    let world = World::new(engine);
    let ran = world
        .run_shell(
            "for d in / /usr /etc /cofferdam /proc/sys/kernel /var /dev; do (echo x > $d/probe) 2>/dev/null && echo WROTE $d; done; \
             for d in /work/repo /work/home /tmp; do (echo x > $d/probe) 2>/dev/null && echo MAY $d; done; rm -f /work/repo/probe; id",
        )
        .expect(0);
    assert!(!ran.stderr.contains("WROTE"), "{}", ran.stderr);
    for place in ["/work/repo", "/work/home", "/tmp"] {
        assert!(ran.stderr.contains(&format!("MAY {place}")), "{place}: {}", ran.stderr);
    }
    assert!(ran.stderr.contains("uid=10001") && ran.stderr.contains("gid=10001"), "{}", ran.stderr);
}

fn every_layer_holds_and_is_recorded(engine: Engine) {
    let world = World::new(engine);
    world.run_shell("true").expect(0);
    let layers = world.last()["posture"].as_array().unwrap().clone();
    assert_eq!(layers.len(), 12);
    for layer in &layers {
        let may_be_accepted =
            !crate::support::is_root() && layer["layer"].as_str().unwrap().ends_with("_limit");
        assert!(layer["status"] == "enforced" || may_be_accepted, "{layer}");
    }
    let prepared = world.fact("sandbox_prepared");
    assert_eq!(prepared["engine"], world.engine.name());
    assert!(!prepared["read_back"].as_array().unwrap().is_empty(), "{prepared}");
    // Offline verification, and what it is worth: one changed byte is found.
    let record = world.cofferdam(&["record", "show", "last"]).expect(0).stdout;
    let file = world.dir.path().join("record.json");
    std::fs::write(&file, &record).unwrap();
    let path = file.display().to_string();
    world.cofferdam(&["record", "verify", &path]).expect(0);
    std::fs::write(&file, record.replacen("no_commits", "no_commitz", 1)).unwrap();
    world.cofferdam(&["record", "verify", &path]).expect(6);
    std::fs::write(&file, record.replacen("\"enforced\"", "\"absent\"", 1)).unwrap();
    world.cofferdam(&["record", "verify", &path]).expect(6);
}

fn what_the_agent_plants_in_git_does_not_run_on_the_host(engine: Engine) {
    let world = World::new(engine);
    let canary = world.dir.path().join("executed");
    let plant = format!(
        "printf '#!/bin/sh\\ntouch {0}\\n' > evil.sh; chmod +x evil.sh; \
         git config core.fsmonitor \"$PWD/evil.sh\"; git config core.hooksPath \"$PWD\"; cp evil.sh post-checkout; cp evil.sh post-applypatch; \
         echo '* filter=evil diff=evil merge=evil' > .gitattributes; git config filter.evil.clean \"touch {0}\"; git config filter.evil.smudge \"touch {0}\"; \
         git -c core.fsmonitor= -c core.hooksPath=/dev/null -c filter.evil.clean=cat add -A; git -c core.fsmonitor= -c core.hooksPath=/dev/null commit -qm planted; true",
        canary.display()
    );
    world.run_shell(&plant).expect(0);
    let id = world.last()["run"].as_str().unwrap().to_owned();
    let diff = world.cofferdam(&["diff", &id]).expect(0).stdout;
    assert!(diff.contains("RISK"), "attributes are marked: {diff}");
    world.cofferdam(&["apply", &id]).expect(0);
    assert!(!canary.exists(), "something of the agent's ran on the host");
    assert!(world.repo().join("evil.sh").exists(), "twin: its files did arrive");
}

fn a_secret_in_the_result_fails_the_run(engine: Engine) {
    let world = World::with_model(engine, "anthropic", crate::sealed::fixing());
    // Negative control: the secret is brought in on purpose, as a file of the checkout.
    world.write("config.env", &format!("TOKEN={KEY}\n"));
    let script = "cat config.env > copy.env && git add -f copy.env && git commit -qm copy";
    let ran = world.run(&["--model", "scripted/test-model", "--", "sh", "-c", script]).expect(1);
    assert!(ran.stdout.contains("RUN-001"), "{}", ran.stdout);
    assert!(
        !ran.stdout.contains(KEY)
            && !world.cofferdam(&["record", "show", "last"]).stdout.contains(KEY)
    );
}
