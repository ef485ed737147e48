//! Agent and shell: which token opens which door, and whose it was in the record.

use cofferdam_broker::{ShellWay, Tokens};
use cofferdam_run::Fact;
use cofferdam_run::spec::Principal;
use tokio::io::AsyncWriteExt as _;

use crate::support::{AUTH, Setup, World, code, read_all, token};

/// `run:shell-token0`.
const SHELL: &str = "Proxy-Authorization: Basic cnVuOnNoZWxsLXRva2VuMA==\r\n";

fn world(way: ShellWay) -> World {
    let tokens = Tokens::two(token("secret-token"), token("shell-token0"), way);
    World::new(Setup { tokens, ..Setup::default() })
}

/// Asks for a refused target with that token at that door: EGRESS-020 means that the token was good.
async fn ask(world: &World, at: Principal, auth: &str) -> (String, Option<Principal>) {
    let mut guest = world.open_at(at);
    let request =
        format!("CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n{auth}\r\n");
    guest.write_all(request.as_bytes()).await.unwrap();
    guest.shutdown().await.unwrap();
    let answer = read_all(&mut guest).await;
    let facts = world.log.facts();
    let Some(Fact::Egress { admitted: false, principal, .. }) = facts.last() else {
        panic!("{facts:?}")
    };
    (code(&answer).unwrap().to_owned(), *principal)
}

#[tokio::test]
async fn a_token_opens_its_own_door_and_the_record_says_whose_it_was() {
    use Principal::{Agent, Shell};
    for (way, at_agents, at_own) in [
        (ShellWay::Closed, "EGRESS-010", "EGRESS-010"),
        (ShellWay::Shared, "EGRESS-020", "EGRESS-010"),
        (ShellWay::Own, "EGRESS-010", "EGRESS-020"),
    ] {
        let world = world(way);
        let said = |code: &str, who| (code.to_owned(), who);
        assert_eq!(ask(&world, Agent, AUTH).await, said("EGRESS-020", Some(Agent)), "{way:?}");
        assert_eq!(ask(&world, Shell, AUTH).await, said("EGRESS-010", Some(Agent)), "{way:?}");
        assert_eq!(ask(&world, Agent, SHELL).await, said(at_agents, Some(Shell)), "{way:?}");
        assert_eq!(ask(&world, Shell, SHELL).await, said(at_own, Some(Shell)), "{way:?}");
        assert_eq!(ask(&world, Shell, "").await, said("EGRESS-010", None), "{way:?}");
        assert!(world.untouched());
    }
}

#[tokio::test]
async fn a_run_with_one_principal_knows_no_other_token() {
    let world = World::plain();
    assert_eq!(ask(&world, Principal::Agent, SHELL).await, ("EGRESS-010".to_owned(), None));
}

#[tokio::test]
async fn what_the_shell_may_reach_is_what_the_rules_admit() {
    let world = world(ShellWay::Own);
    let mut guest = world.open_at(Principal::Shell);
    let request = format!("GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n{SHELL}\r\n");
    guest.write_all(request.as_bytes()).await.unwrap();
    let mut host = world.next_host().await;
    host.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
    guest.shutdown().await.unwrap();
    assert!(read_all(&mut guest).await.ends_with("hi"));
    let facts = world.facts(1).await;
    assert!(
        matches!(&facts[0], Fact::Egress { admitted: true, principal: Some(Principal::Shell), .. }),
        "{facts:?}"
    );
}
