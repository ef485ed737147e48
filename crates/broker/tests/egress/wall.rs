//! The wall test as the door sees it.

use cofferdam_broker::egress::WallSeen;
use cofferdam_policy::authority::Name;

use crate::support::{Setup, World, code, connect, get};

const TARGET: &str = "wall-0f.invalid";

fn watched(allow: Vec<&'static str>) -> World {
    let world = World::new(Setup { allow, ..Setup::default() });
    world.door.begin_wall_test(Name::parse(TARGET).unwrap());
    world
}

fn both() -> [String; 2] {
    [connect(&format!("{TARGET}:443")), get("/").replace("a.example", TARGET)]
}

#[tokio::test]
async fn refused_attempts_are_counted_by_kind_and_told_as_no_facts() {
    let world = watched(vec!["a.example:80"]);
    for request in both() {
        assert_eq!(code(&world.ask(request).await), Some("EGRESS-020"));
    }
    // Anything else is told as ever.
    world.ask(connect("b.example:443")).await;
    assert!(world.untouched());
    assert_eq!(world.log.facts().len(), 1);
    let seen = world.door.end_wall_test();
    let all = WallSeen { tunnels_refused: 1, plain_refused: 1, let_through: 0, other: 0 };
    assert_eq!(seen, all);
    assert!(seen.holds());
    // Once the test is over the target is one like any other.
    world.ask(&both()[0]).await;
    assert_eq!(world.log.facts().len(), 2);
    assert_eq!(world.door.end_wall_test(), WallSeen::default());
}

/// S2: rules that are not asked for CONNECT, or not asked at all.
#[tokio::test]
async fn a_door_that_admits_the_target_does_not_hold_and_waits_for_no_lookup() {
    for (allow, tunnels, plain) in [("wall-0f.invalid:443", 0, 1), ("wall-0f.invalid:80", 1, 0)] {
        let world = watched(vec![allow]);
        for request in both() {
            world.ask(request).await;
        }
        assert!(world.untouched(), "{allow}");
        let seen = world.door.end_wall_test();
        assert_eq!(
            seen,
            WallSeen { tunnels_refused: tunnels, plain_refused: plain, let_through: 1, other: 0 }
        );
        assert!(!seen.holds(), "{allow}");
        let facts = world.log.facts();
        assert_eq!(facts.len(), 1, "what the rules admitted is told: {facts:?}");
    }
}

#[tokio::test]
async fn attempts_that_never_reached_the_rules_show_nothing() {
    let world = watched(vec!["a.example:80"]);
    let unauthorised = |request: String| request.replace("Proxy-Authorization", "X-Other");
    for request in both().map(unauthorised) {
        assert_eq!(code(&world.ask(request).await), Some("EGRESS-010"));
    }
    let upgrade = get("/")
        .replace("a.example", TARGET)
        .replace("\r\n\r\n", "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(code(&world.ask(upgrade).await), Some("EGRESS-022"));
    let seen = world.door.end_wall_test();
    assert_eq!(seen, WallSeen { other: 1, ..WallSeen::default() });
    assert!(!seen.holds());
}
