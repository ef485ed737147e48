//! The attacker as the agent of a whole run: real command, real guest, real proxy and broker.

use cofferdam_security::Place;

use crate::machine::Machine;
use crate::report::{Report, expected_on};
use crate::targets::Targets;
use crate::world::{EngineName, World, on_both_engines};

on_both_engines!(every_attempt_is_refused_in_a_run, a_token_opens_the_door_of_its_own_run);

/// The token of the run, from the agent's own environment.
const SAY_TOKEN: &str = "echo \"TOKEN ${http_proxy:-$HTTP_PROXY}\"";

fn token_of(said: &str) -> String {
    let url = said.lines().find_map(|line| line.split_once("TOKEN ")).map(|(_, url)| url);
    let url = url.unwrap_or_else(|| panic!("no token: {said}"));
    let user =
        url.split_once("//").and_then(|(_, rest)| rest.split_once('@')).map(|(user, _)| user);
    user.and_then(|user| user.split_once(':')).map(|(_, token)| token.to_owned()).unwrap()
}

fn every_attempt_is_refused_in_a_run(engine: EngineName) {
    let (world, targets, before) = (World::new(engine), Targets::new(), Machine::look());
    let other = token_of(&world.shell(SAY_TOKEN).expect(0).stderr);
    let mut agent = vec!["./attacker".to_owned(), format!("other_token={other}")];
    agent.extend(targets.parameters());
    agent.push("product".to_owned());
    let words: Vec<&str> = agent.iter().map(String::as_str).collect();
    let ran = world.run(&words);
    let expected =
        expected_on(engine).filter(|a| matches!(a.place, Place::Anywhere | Place::Product));
    let report = Report::parse(&ran.stderr).excusing(engine);
    report.assert_all_refused(expected.map(|attempt| attempt.name));
    ran.expect(0);
    assert_eq!(before, Machine::look(), "the machine is not as it was");
    // What the broker let out is what the rule names, and the record has all the rest as refused.
    let egress = world.facts("egress");
    let admitted: Vec<_> = egress.iter().filter(|fact| fact["admitted"] == true).collect();
    assert!(!admitted.is_empty(), "the twin's connections are in the record");
    for fact in admitted {
        assert_eq!(fact["target"], "web.service.internal:80", "{fact}");
    }
    assert!(egress.iter().any(|fact| fact["admitted"] == false), "{egress:?}");
    for layer in world.last()["posture"].as_array().unwrap() {
        assert_eq!(layer["status"], "enforced", "{layer}");
    }
    world.assert_nothing_left();
}

/// Twin and control of `broker.token_of_another_run`: in its own run the token opens the door.
fn a_token_opens_the_door_of_its_own_run(engine: EngineName) {
    let world = World::new(engine);
    let first = token_of(&world.shell(SAY_TOKEN).expect(0).stderr);
    let second = token_of(&world.shell(SAY_TOKEN).expect(0).stderr);
    assert_ne!(first, second);
    let script = "./attacker other_token=$(echo ${http_proxy:-$HTTP_PROXY} | sed 's,.*//[^:]*:,,; s,@.*,,') \
                  broker.token_of_another_run";
    let ran = world.shell(script).expect(0);
    Report::parse(&ran.stderr).assert_all_through(["broker.token_of_another_run"].into_iter());
}
